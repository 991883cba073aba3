"""What is registered: parts by kind and name, pruners by name, and how a name becomes a value."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from gemkit.errors import GemkitError, OptionError, PluginError, UnknownNameError, did_you_mean
from gemkit.options import argument_field, attempt, from_data, part_from, report
from gemkit.parts import (
    Allocation,
    DatasetPart,
    FreezeSchedule,
    Initializer,
    ModelPart,
    Observer,
    Part,
    Regularizer,
    Rounding,
    SanityCheck,
    Scores,
)
from gemkit.preset import VARIANTS, Preset
from gemkit.recipe import ROLES, Recipe, Rewind

RecipeData = Mapping[str, Any]
PartSpec = str | Mapping[str, Any]
Thing = TypeVar("Thing", covariant=True)


class Kind(NamedTuple):
    """A kind of part: the hook that brings it, its base class, and its word in options."""

    hook: str
    base: type[Part]
    label: str


KINDS: dict[str, Kind] = {
    "scores": Kind("gemkit_scores", Scores, "scores"),
    "roundings": Kind("gemkit_roundings", Rounding, "rounding"),
    "allocations": Kind("gemkit_allocations", Allocation, "allocation"),
    "schedules": Kind("gemkit_freeze_schedules", FreezeSchedule, "schedule"),
    "regularizers": Kind("gemkit_regularizers", Regularizer, "regularizer"),
    "initializers": Kind("gemkit_initializers", Initializer, "init"),
    "checks": Kind("gemkit_sanity_checks", SanityCheck, "check"),
    "models": Kind("gemkit_models", ModelPart, "model"),
    "datasets": Kind("gemkit_datasets", DatasetPart, "dataset"),
    "observers": Kind("gemkit_observers", Observer, "observer"),
}

KIND_OF_ROLE = {kind.label: name for name, kind in KINDS.items() if kind.label in ROLES}


class Entry(NamedTuple, Generic[Thing]):
    """Something registered, the plugin that brought it, and that plugin's name and version."""

    thing: Thing
    plugin: str
    distribution: str


class Refusal(NamedTuple):
    """A plugin that was not loaded, and a full sentence saying why."""

    plugin: str
    distribution: str
    reason: str


@dataclass
class _Choice:
    """The class chosen for a role, and the fields given for it so far."""

    part: type[Part]
    fields: dict[str, Any]


@dataclass(frozen=True)
class Registry:
    """Everything the loaded plugins brought: a plain value, made by `gemkit.plugins.load_plugins`.

    `contested` holds the names that two plugins claim, with the message for whoever uses one;
    their kind is one of `KINDS`, or `pruners`, or `presets`.
    """

    parts: Mapping[str, Mapping[str, Entry[type[Part]]]]
    pruners: Mapping[str, Entry[RecipeData]] = field(default_factory=dict)
    presets: Mapping[str, Entry[Preset]] = field(default_factory=dict)
    contested: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()

    def part(self, kind: str, name: str) -> Entry[type[Part]]:
        """Look up a part class by its kind (a key of `KINDS`) and name."""
        if kind not in KINDS:
            raise UnknownNameError(f"unknown kind of part '{kind}'{did_you_mean(kind, KINDS)}")
        self._require(kind, name, KINDS[kind].label, self.parts[kind])
        return self.parts[kind][name]

    def pruner(self, name: str) -> Entry[RecipeData]:
        """Look up the recipe data of a pruner."""
        self._require("pruners", name, "pruner", self.pruners)
        return self.pruners[name]

    def preset(self, name: str) -> Entry[Preset]:
        """Look up a preset; without @ and a word it is the paper's, or else the code's."""
        names = [name, *(f"{name}@{word}" for word in VARIANTS)]
        known = next((one for one in names if one in self.presets), name)
        self._require("presets", known, "preset", self.presets)
        return self.presets[known]

    def _require(self, kind: str, name: str, label: str, known: Collection[str]) -> None:
        """Refuse a name that two plugins claim, or that nobody registered."""
        if (kind, name) in self.contested:
            raise PluginError(self.contested[kind, name])
        if name not in known:
            list_them = "gemkit presets" if kind == "presets" else f"gemkit parts {kind}"
            all_of_them = f"; `{list_them}` lists what there is" if known else "; there is none"
            message = f"unknown {label} {name!r}{did_you_mean(name, known) or all_of_them}"
            if self.refused:
                reasons = [refusal.reason for refusal in self.refused]
                message = "\n  - ".join(
                    [f"{message}\nIt may belong to a refused plugin:", *reasons]
                )
            raise UnknownNameError(message)

    def build(self, kind: str, spec: PartSpec, fields: Mapping[str, Any] | None = None) -> Part:
        """Build a part from `"name"`, `"name:argument"` or `{"name": ..., field: value}`.

        `fields` are set on top of what `spec` says.
        """
        choice = self._choose(kind, spec)
        label = KINDS[kind].label
        part, problems = part_from(choice.part, {**choice.fields, **(fields or {})}, label)
        if part is None:
            raise report(f"{label} '{choice.part.name}'", problems)
        return part

    def recipe(
        self,
        pruner: str | RecipeData,
        *,
        parts: Mapping[str, PartSpec] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Recipe:
        """Make the recipe of a named pruner, or of recipe data, with changes.

        `parts` puts another part into a role: `{"rounding": "bernoulli"}`. It starts from its own
        defaults, unless it is the part that was there already. `options` then sets single fields,
        as `{"regularizer.weight": 1e-3}` or `{"rewind.weights": 2.5}`, and fields of the recipe
        itself, as `{"finalize": "alive"}`.
        """
        if isinstance(pruner, str):
            data = {"pruner": pruner, **self.pruner(pruner).thing}
        else:
            data = dict(pruner)
        title = f"pruner {str(data['pruner'])!r}" if "pruner" in data else "this recipe"
        try:
            choices = self._fill_roles(data, parts or {})
            _set_options_(data, choices, options or {})
        except GemkitError as error:
            raise type(error)(f"{title}: {error}") from error
        return _assemble(title, data, choices)

    def recipe_from_toml(self, text: str) -> Recipe:
        """Read a recipe as `Recipe.to_toml` writes it."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise OptionError(f"this recipe is not valid TOML: {error}") from error
        return self.recipe(data)

    def _fill_roles(
        self, data: dict[str, Any], parts: Mapping[str, PartSpec]
    ) -> dict[str, _Choice]:
        """Take the roles out of the recipe data, and choose a part for every one."""
        for role in parts:
            if role not in ROLES:
                raise OptionError(f"there is no role '{role}'{did_you_mean(role, ROLES)}")
        choices = {}
        for role, kind in KIND_OF_ROLE.items():
            choice = self._choose(kind, data.pop(role, ROLES[role].default))
            if role in parts:
                new = self._choose(kind, parts[role])
                if new.part is choice.part:
                    new.fields = {**choice.fields, **new.fields}
                choice = new
            choices[role] = choice
        return choices

    def _choose(self, kind: str, spec: PartSpec) -> _Choice:
        """Find the class that a spec names, and the fields it gives."""
        label = KINDS[kind].label if kind in KINDS else kind
        fields = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
        text = fields.pop("name", None)
        if not isinstance(text, str):
            raise OptionError(
                f"{label} = {spec!r}: should be the name of a part, or a table with its name "
                "and fields"
            )
        name, colon, argument = text.partition(":")
        part = self.part(kind, name).thing
        if colon:
            fields = {**argument_field(part, argument, label), **fields}
        return _Choice(part, fields)


def _set_options_(
    data: dict[str, Any], choices: Mapping[str, _Choice], options: Mapping[str, Any]
) -> None:
    """Write `role.field` and `rewind.field` in their places, the rest into the recipe's own."""
    for key, value in options.items():
        role, dot, name = key.partition(".")
        if key in ROLES:
            fields = [f"{key}.{name}" for name in choices[key].part.model_fields]
            raise OptionError(
                f"{key} is a part, not an option; its options are {', '.join(fields) or 'none'}"
            )
        if dot and role in choices:
            choices[role].fields[name] = value
        elif dot and role == "rewind" and isinstance(data.get(role, {}), Mapping):
            data[role] = {**data.get(role, {}), name: value}
        else:
            data[key] = value


def _assemble(title: str, data: RecipeData, choices: Mapping[str, _Choice]) -> Recipe:
    """Validate every part and the recipe itself, and report all problems at once."""
    parts, problems = {}, []
    for role, choice in choices.items():
        parts[role], found = part_from(choice.part, choice.fields, role)
        problems += found
    rewind, found = from_data(Rewind, data.get("rewind", {}), label="rewind", title="rewind")
    problems += found
    recipe, found = attempt(
        lambda: Recipe.model_validate({**data, **parts, "rewind": rewind}),
        Recipe,
        label="",
        title=title,
        ignore=(*ROLES, "rewind"),
    )
    problems += found
    if recipe is None or problems:
        raise report(title, problems)
    return recipe
