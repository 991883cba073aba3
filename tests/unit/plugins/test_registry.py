"""The registry builds parts and recipes from names and options; errors say the way out."""

from typing import ClassVar

import pytest
from pydantic import Field, model_validator

from gemkit.core.errors import GemkitError, OptionError, UnknownNameError, did_you_mean
from gemkit.parts.recipe import ROLES
from gemkit.parts.regularizer import Regularizer
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import KIND_OF_ROLE, KINDS, Entry, Refusal, Registry


class Many(Regularizer):
    """A part with a field of every type."""

    name = "many"
    argument: ClassVar[str | None] = "count"

    count: int = Field(default=1, ge=1, lt=10, description="a bounded integer")
    weight: float = Field(default=1.0, gt=0, description="a bounded number")
    pair: tuple[int, int] = Field(default=(0, 0), description="two integers")
    names: tuple[str, ...] = Field(default=(), description="any number of names")
    limit: int | None = Field(default=None, ge=0, description="an integer, or none")

    @model_validator(mode="after")
    def _ordered(self) -> "Many":
        if self.pair[0] > self.pair[1]:
            raise ValueError("pair must ascend")
        return self

    def penalty(self, values, now):
        raise NotImplementedError


class Wordy(Many):
    """A part whose argument is text."""

    name = "wordy"
    argument = "word"

    word: str = Field(description="required text")


@pytest.fixture(scope="module")
def registry() -> Registry:
    loaded = load_plugins(only=())
    own = {cls.name: Entry(cls, "test", "file test.py") for cls in (Many, Wordy)}
    return Registry(
        {**loaded.parts, "regularizers": {**loaded.parts["regularizers"], **own}}, loaded.pruners
    )


def message(call, *arguments, error=OptionError, **keywords) -> str:
    with pytest.raises(error) as caught:
        call(*arguments, **keywords)
    assert type(caught.value) is error
    return str(caught.value)


# --- looking up ------------------------------------------------------------------------------


def test_every_role_of_a_recipe_has_its_kind():
    assert KIND_OF_ROLE.keys() == ROLES.keys()
    for role, kind in KIND_OF_ROLE.items():
        assert KINDS[kind].base is ROLES[role].kind


def test_every_default_of_a_role_is_registered(registry):
    for role, kind in KIND_OF_ROLE.items():
        if default := ROLES[role].default:
            assert issubclass(registry.part(kind, default).thing, ROLES[role].kind)


def test_a_role_without_a_default_may_stay_empty_or_be_filled(registry):
    assert {role for role in ROLES if ROLES[role].default is None} == {"grow", "objective"}
    empty = registry.recipe({"pruner": "mine", "grow": None})
    assert (empty.grow, empty.objective) == (None, None)
    filled = registry.recipe({"pruner": "mine", "grow": "random", "objective": "kl"})
    assert (filled.grow.name, filled.objective.name) == ("random", "kl")


def test_an_unknown_name_suggests_the_closest(registry):
    said = message(registry.part, "roundings", "treshold", error=UnknownNameError)
    assert said == "unknown rounding 'treshold'; did you mean 'threshold'?"
    said = message(registry.recipe, "gem_minor", error=UnknownNameError)
    assert said.startswith("unknown pruner 'gem_minor'; did you mean 'gem_miner'")
    said = message(registry.part, "rounding", "open", error=UnknownNameError)
    assert said == "unknown kind of part 'rounding'; did you mean 'roundings'?"


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("adam", ["random", "magnitude"], "; there is magnitude, random"),
        ("magic", ["magnitude"], "; there is magnitude"),
        ("opne", ["open", "topk"], "; did you mean 'open'?"),
        ("gem", ["gem_miner", "random"], "; did you mean 'gem_miner'?"),
        ("", ["snip", "random"], "; there is random, snip"),
        ("resnet-18", ["resnet18", "vgg"], "; did you mean 'resnet18'?"),
        ("adam", [f"random{number}" for number in range(50)], ""),
    ],
)
def test_similar_names_are_suggested_or_all_are_listed(name, known, words):
    assert did_you_mean(name, known) == words


def test_an_unknown_name_mentions_the_plugins_that_were_refused():
    reason = "plugin 'snip' (gemkit-snip 2.0) cannot be imported: ImportError: no jax"
    registry = Registry({kind: {} for kind in KINDS}, refused=(Refusal("snip", "2.0", reason),))
    said = message(registry.build, "scores", "snip", error=UnknownNameError)
    assert said.startswith("unknown scores 'snip'")
    assert said.endswith(reason)


# --- building one part -----------------------------------------------------------------------


def test_a_part_is_built_from_name_and_fields(registry):
    part = registry.build("regularizers", "many", {"weight": 2, "pair": [1, 2], "names": ["a"]})
    assert part == Many(weight=2.0, pair=(1, 2), names=("a",))


def test_a_part_is_built_from_a_table(registry):
    assert registry.build("regularizers", {"name": "many", "count": 3}) == Many(count=3)
    assert registry.build("regularizers", {"name": "many", "count": 3}, {"count": 4}).count == 4


def test_the_argument_fills_its_field(registry):
    assert registry.build("regularizers", "many:3") == Many(count=3)
    assert registry.build("regularizers", "wordy:3:x") == Wordy(word="3:x")
    assert registry.build("regularizers", "wordy:3") == Wordy(word="3")


def test_a_bad_argument_is_reported_like_a_bad_field(registry):
    said = message(registry.build, "regularizers", "many:three")
    assert said == "regularizer 'many': regularizer.count = 'three': should be a valid integer"
    said = message(registry.build, "regularizers", "l2:3")
    assert "regularizer 'l2' takes nothing after a colon, but got '3'" in said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"count": 10}, "regularizer.count = 10: should be less than 10"),
        ({"count": 0}, "regularizer.count = 0: should be greater than or equal to 1"),
        ({"count": 2.0}, "regularizer.count = 2.0: should be a valid integer"),
        ({"count": "2"}, "regularizer.count = '2': should be a valid integer"),
        ({"count": True}, "regularizer.count = True: should be a valid integer"),
        ({"weight": "1"}, "regularizer.weight = '1': should be a valid number"),
        ({"weight": float("nan")}, "regularizer.weight = nan: should be a finite number"),
        ({"weight": float("inf")}, "regularizer.weight = inf: should be a finite number"),
        ({"pair": [1]}, "regularizer.pair.1 must be given"),
        ({"pair": [2, 1]}, "pair must ascend"),
        ({"pair": [0, "1"]}, "regularizer.pair.1 = '1': should be a valid integer"),
        ({"limit": -1}, "regularizer.limit = -1: should be greater than or equal to 0"),
        ({"wieght": 1}, "regularizer.wieght does not exist; did you mean 'weight'?"),
        ({"count": object}, "regularizer.count = \"<class 'object'>\": should be a valid integer"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_bound(registry, fields, words):
    assert words in message(registry.build, "regularizers", "many", fields)


def test_a_missing_field_is_named(registry):
    said = message(registry.build, "regularizers", "wordy")
    assert said == "regularizer 'wordy': regularizer.word must be given"


def test_a_part_without_options_says_so(registry):
    said = message(registry.build, "regularizers", "none", {"weight": 1})
    assert said.endswith("regularizer.weight does not exist; regularizer 'none' has no options")


def test_all_problems_are_reported_at_once(registry):
    said = message(registry.build, "regularizers", "many", {"count": 0, "weight": 0, "x": 1})
    assert said.startswith("regularizer 'many': 3 problems\n  - regularizer.count = 0: ")
    assert "\n  - regularizer.weight = 0: should be greater than 0" in said
    assert "\n  - regularizer.x does not exist" in said


# --- recipes with changes --------------------------------------------------------------------


def test_another_part_starts_from_its_own_defaults(registry):
    data = {"pruner": "mine", "regularizer": {"name": "l2", "weight": 0.5}}
    assert registry.recipe(data, parts={"regularizer": "l1"}).regularizer.weight == 1e-4


def test_the_same_part_keeps_the_fields_it_had(registry):
    data = {"pruner": "mine", "regularizer": {"name": "many", "weight": 0.5, "count": 2}}
    recipe = registry.recipe(data, parts={"regularizer": "many:7"})
    assert recipe.regularizer == Many(weight=0.5, count=7)


def test_options_set_fields_of_the_parts_chosen(registry):
    options = {"regularizer.weight": 1e-3, "finalize": "alive", "schedule.every": 5}
    recipe = registry.recipe("gem_miner", parts={"regularizer": "l1"}, options=options)
    assert (recipe.regularizer.name, recipe.regularizer.weight) == ("l1", 1e-3)
    assert (recipe.finalize, recipe.schedule.every) == ("alive", 5)


def test_changes_do_not_affect_the_registered_pruner(registry):
    before = registry.recipe("gem_miner")
    data = {"pruner": "mine", "regularizer": {"name": "l2"}}
    registry.recipe("gem_miner", options={"regularizer.weight": 0.5})
    registry.recipe(data, options={"regularizer.weight": 0.5})
    assert registry.recipe("gem_miner") == before
    assert data == {"pruner": "mine", "regularizer": {"name": "l2"}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"regularizer.weight": -1},
            "pruner 'gem_miner': regularizer.weight = -1: should be greater than or equal to 0",
        ),
        (
            {"rounding.treshold": 0.2},
            "pruner 'gem_miner': rounding.treshold does not exist; did you mean 'threshold'?",
        ),
        ({"finalize": "q"}, "pruner 'gem_miner': finalize = 'q': should be 'rounded' or 'alive'"),
        ({"density": 2}, "pruner 'gem_miner': density = 2: should be less than or equal to 1"),
        ({"density": True}, "pruner 'gem_miner': density = True"),
        ({"finalise": "alive"}, "finalise does not exist; did you mean 'finalize'"),
        (
            {"regulariser.weight": 1},
            "regulariser.weight does not exist; did you mean 'regularizer'",
        ),
        (
            {"rounding": "open"},
            "rounding is a part, not an option; its options are rounding.threshold",
        ),
        ({"rounding.name": "open"}, "rounding.name does not exist"),
    ],
)
def test_a_bad_option_is_named_with_its_pruner(registry, options, words):
    assert words in message(registry.recipe, "gem_miner", options=options)


def test_problems_of_all_roles_are_reported_at_once(registry):
    options = {"regularizer.weight": -1, "rounding.threshold": 1, "finalize": "q", "schedule.x": 0}
    said = message(registry.recipe, "gem_miner", options=options)
    assert said.startswith("pruner 'gem_miner': 4 problems\n")
    for words in (
        "regularizer.weight = -1",
        "rounding.threshold = 1",
        "finalize = 'q'",
        "schedule.x",
    ):
        assert f"\n  - {words}" in said


def test_unknown_roles_and_parts_are_reported_with_the_pruner(registry):
    said = message(registry.recipe, "gem_miner", parts={"roundings": "open"})
    assert said == "pruner 'gem_miner': there is no role 'roundings'; did you mean 'rounding'?"
    said = message(registry.recipe, "gem_miner", parts={"rounding": "opne"}, error=UnknownNameError)
    assert "pruner 'gem_miner': unknown rounding 'opne'; did you mean 'open'" in said


@pytest.mark.parametrize("spec", [3, {"threshold": 0.5}, {"name": 3}, ["open"], None])
def test_a_role_without_a_part_name_is_reported(registry, spec):
    said = message(registry.recipe, {"pruner": "mine", "rounding": spec})
    assert said.startswith(f"pruner 'mine': rounding = {spec!r}: should be the name of a part")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pruner = ", "this recipe is not valid TOML: Invalid value (at"),
        ("help = 'no name'", "this recipe: pruner must be given"),
        ("pruner = 'My pruner'", "pruner = 'My pruner': String should match pattern"),
        ("pruner = 'mine'\nscorse = 'snip'", "scorse does not exist; did you mean 'scores'"),
        ("pruner = 'mine'\nhelp = 3", "pruner 'mine': help = 3: should be a valid string"),
        (
            "pruner = 'mine'\n[regularizer]\nname = 'l2'\nweight = 1979-05-27",
            "regularizer.weight = '1979-05-27': should be a valid number",
        ),
    ],
)
def test_a_bad_recipe_file_is_reported(registry, text, words):
    assert words in message(registry.recipe_from_toml, text)


def test_a_short_recipe_file_takes_defaults(registry):
    recipe = registry.recipe_from_toml("pruner = 'mine'\nregularizer = 'many:4'\ndensity = 1")
    assert recipe.regularizer == Many(count=4)
    assert {role: part.name for role, part in recipe.parts().items()} == {
        **{role: default for role, (_, default) in ROLES.items() if default},
        "regularizer": "many",
    }
    assert recipe.density == 1.0


def test_every_mistake_is_a_gemkit_error(registry):
    for call in (
        lambda: registry.part("x", "y"),
        lambda: registry.pruner("x"),
        lambda: registry.build("x", "y"),
        lambda: registry.build("models", "y"),
        lambda: registry.recipe({}),
    ):
        with pytest.raises(GemkitError):
            call()
