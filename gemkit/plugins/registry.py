"""The registry: parts by kind and name, pruners and presets by name."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from gemkit.core.errors import GemkitError, OptionError, PluginError, UnknownNameError, did_you_mean
from gemkit.data.part import DatasetPart
from gemkit.models.part import ModelPart
from gemkit.parts.allocation import Allocation
from gemkit.parts.executor import StudyExecutor
from gemkit.parts.initializer import Initializer
from gemkit.parts.objective import Objective
from gemkit.parts.observer import Observer
from gemkit.parts.options import argument_field, attempt, from_data, part_from, report
from gemkit.parts.part import Part
from gemkit.parts.recipe import ROLES, TABLES, Recipe
from gemkit.parts.regularizer import Regularizer
from gemkit.parts.rounding import Rounding
from gemkit.parts.schedule import FreezeSchedule
from gemkit.parts.scores import Scores
from gemkit.parts.structure import Structure
from gemkit.presets.preset import VARIANTS, Preset
from gemkit.sanity.check import SanityCheck
from gemkit.sanity.measurement import Measurement

RecipeData = Mapping[str, Any]
PartSpec = str | Mapping[str, Any]
Thing = TypeVar("Thing", covariant=True)


class Kind(NamedTuple):
    """A kind of part: its hook, its base class, and its name in options."""

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
    "structures": Kind("gemkit_structures", Structure, "structure"),
    "objectives": Kind("gemkit_objectives", Objective, "objective"),
    "checks": Kind("gemkit_sanity_checks", SanityCheck, "check"),
    "measurements": Kind("gemkit_measurements", Measurement, "measurement"),
    "models": Kind("gemkit_models", ModelPart, "model"),
    "datasets": Kind("gemkit_datasets", DatasetPart, "dataset"),
    "observers": Kind("gemkit_observers", Observer, "observer"),
    "executors": Kind("gemkit_executors", StudyExecutor, "executor"),
}

KIND_OF_ROLE = {
    role: next(name for name, kind in KINDS.items() if kind.base is base)
    for role, (base, _) in ROLES.items()
}


class Entry(NamedTuple, Generic[Thing]):
    """A registered thing, its plugin, and that plugin's distribution and version."""

    thing: Thing
    plugin: str
    distribution: str


class Refusal(NamedTuple):
    """A plugin that was not loaded, and why."""

    plugin: str
    distribution: str
    reason: str


@dataclass
class _Choice:
    """The class chosen for a role, and its fields so far."""

    part: type[Part]
    fields: dict[str, Any]


@dataclass(frozen=True)
class Registry:
    """Everything that plugins registered, as made by `gemkit.load_plugins`.

    `contested` maps (kind, name) of what two plugins claim to an error message; the kind is one of
    `KINDS`, or `pruners`, or `presets`. `files` are the plugin files that were loaded.
    """

    parts: Mapping[str, Mapping[str, Entry[type[Part]]]]
    pruners: Mapping[str, Entry[RecipeData]] = field(default_factory=dict)
    presets: Mapping[str, Entry[Preset]] = field(default_factory=dict)
    contested: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    files: tuple[str, ...] = ()

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
        """Look up a preset; a name without @ is the paper's variant, or else the code's."""
        names = [name, *(f"{name}@{word}" for word in VARIANTS)]
        known = next((one for one in names if one in self.presets), name)
        self._require("presets", known, "preset", self.presets)
        return self.presets[known]

    def _require(self, kind: str, name: str, label: str, known: Collection[str]) -> None:
        """Refuse a name that two plugins claim, or that is not registered."""
        if (kind, name) in self.contested:
            raise PluginError(self.contested[kind, name])
        if name not in known:
            command = "gemkit presets" if kind == "presets" else f"gemkit parts {kind}"
            hint = f"; `{command}` lists all" if known else "; there is none"
            message = f"unknown {label} {name!r}{did_you_mean(name, known) or hint}"
            if self.refused:
                reasons = [refusal.reason for refusal in self.refused]
                message = "\n  - ".join(
                    [f"{message}\nIt may belong to a refused plugin:", *reasons]
                )
            raise UnknownNameError(message)

    def build(self, kind: str, spec: PartSpec, fields: Mapping[str, Any] | None = None) -> Part:
        """Build a part from `"name"`, `"name:argument"` or `{"name": ..., field: value}`.

        `fields` override those of `spec`.
        """
        choice = self._choose(kind, spec)
        label = KINDS[kind].label
        choice.fields |= fields or {}
        part, problems = part_from(choice.part, self._with_parts(choice), label)
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
        """Build the recipe of a pruner, given by name or as recipe data, with changes.

        `parts` replaces the part of a role: `{"rounding": "bernoulli"}`; if it is the same class,
        the fields set so far stay. `options` then sets single fields, as in
        `{"regularizer.weight": 1e-3}`, `{"rewind.weights": 2.5}` or `{"finalize": "alive"}`.
        """
        if isinstance(pruner, str):
            data = {"pruner": pruner, **self.pruner(pruner).thing}
        else:
            data = dict(pruner)
        title = f"pruner {str(data['pruner'])!r}" if "pruner" in data else "this recipe"
        try:
            choices = self._fill_roles(data, parts or {})
            _set_options_(data, choices, options or {})
            for choice in choices.values():
                choice.fields = self._with_parts(choice)
        except GemkitError as error:
            raise type(error)(f"{title}: {error}") from error
        return _assemble(title, data, choices)

    def recipe_from_toml(self, text: str) -> Recipe:
        """Read a recipe in the format of `Recipe.to_toml`."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise OptionError(f"this recipe is not valid TOML: {error}") from error
        return self.recipe(data)

    def _fill_roles(
        self, data: dict[str, Any], parts: Mapping[str, PartSpec]
    ) -> dict[str, _Choice]:
        """Remove the roles from the recipe data, and choose a part for each."""
        for role in parts:
            if role not in ROLES:
                raise OptionError(f"there is no role '{role}'{did_you_mean(role, ROLES)}")
        choices = {}
        for role, kind in KIND_OF_ROLE.items():
            spec, new = data.pop(role, ROLES[role].default), parts.get(role)
            if spec is not None or ROLES[role].default:
                choices[role] = self._choose(kind, spec)
            if new is not None:
                choice = self._choose(kind, new)
                if role in choices and choice.part is choices[role].part:
                    choice.fields = {**choices[role].fields, **choice.fields}
                choices[role] = choice
        return choices

    def _choose(self, kind: str, spec: PartSpec) -> _Choice:
        """Return the class and the fields of a spec."""
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

    def _with_parts(self, choice: _Choice) -> dict[str, Any]:
        """Return the fields of a choice, those that hold a part built from its name or table."""
        fields = dict(choice.fields)
        for name, info in choice.part.model_fields.items():
            if name in fields and isinstance(fields[name], str | Mapping):
                kind = next((key for key, own in KINDS.items() if own.base is info.annotation), "")
                if kind:
                    fields[name] = self.build(kind, fields[name])
        return fields


def _set_options_(
    data: dict[str, Any], choices: Mapping[str, _Choice], options: Mapping[str, Any]
) -> None:
    """Write `role.field`, `rewind.field` and `prunable.field` in their places, and the rest."""
    for key, value in options.items():
        role, dot, name = key.partition(".")
        if key in choices:
            fields = [f"{key}.{name}" for name in choices[key].part.model_fields]
            raise OptionError(
                f"{key} is a part, not an option; its options are {', '.join(fields) or 'none'}"
            )
        if dot and role in choices:
            choices[role].fields[name] = value
        elif dot and role in TABLES and isinstance(data.get(role, {}), Mapping):
            data[role] = {**data.get(role, {}), name: value}
        else:
            data[key] = value


def _assemble(title: str, data: RecipeData, choices: Mapping[str, _Choice]) -> Recipe:
    """Validate all parts and the recipe, and report all problems at once."""
    parts, problems = {}, []
    for role, choice in choices.items():
        parts[role], found = part_from(choice.part, choice.fields, role)
        problems += found
    tables: dict[str, Any] = {}
    for name, table in TABLES.items():
        tables[name], found = from_data(table, data.get(name, {}), label=name, title=name)
        problems += found
    recipe, found = attempt(
        lambda: Recipe.model_validate({**data, **parts, **tables}),
        Recipe,
        label="",
        title=title,
        ignore=(*ROLES, *tables),
    )
    problems += found
    if recipe is None or problems:
        raise report(title, problems)
    return recipe
