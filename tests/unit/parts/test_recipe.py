"""A recipe survives being written down, as data, JSON or TOML, whatever its parts and fields."""

import json
import tomllib
from functools import cache

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from gemkit.core.errors import GemkitError, OptionError
from gemkit.parts.recipe import ROLES, Recipe, part_data
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import KIND_OF_ROLE, Registry
from gemkit.testing.strategies import field_values, recipes


@cache
def registry() -> Registry:
    return load_plugins(only=())


PRUNERS = sorted(registry().pruners)
NEUTRAL = {"structure": "weights", "grow": None, "objective": None}
"""What a recipe says nothing about, so that it reads as it did before these roles came."""
PARTS = sorted((kind, name) for kind, known in registry().parts.items() for name in known)


def survives_as_data(recipe: Recipe) -> bool:
    return registry().recipe(recipe.to_data()) == recipe


def survives_as_json(recipe: Recipe) -> bool:
    return registry().recipe(json.loads(json.dumps(recipe.to_data()))) == recipe


def survives_as_toml(recipe: Recipe) -> bool:
    return registry().recipe_from_toml(recipe.to_toml()) == recipe


WAYS = [survives_as_data, survives_as_json, survives_as_toml]


@pytest.mark.parametrize("survives", WAYS)
@pytest.mark.parametrize("pruner", PRUNERS)
def test_every_pruner_survives_being_written_down(pruner, survives):
    assert survives(registry().recipe(pruner))


@settings(deadline=None, max_examples=100)
@given(recipe=recipes(registry()))
def test_any_recipe_survives_being_written_down(recipe):
    for survives in WAYS:
        assert survives(recipe)


@pytest.mark.parametrize(("kind", "name"), PARTS)
@settings(deadline=None, max_examples=10)
@given(draw=st.data())
def test_any_part_survives_being_written_down(kind, name, draw):
    fields = draw.draw(field_values(registry().part(kind, name).thing))
    part = registry().build(kind, name, fields)
    plain = {key: value for key, value in fields.items() if key not in part.inner()}
    assert plain == {
        key: value for key, value in part.model_dump(mode="json").items() if key in plain
    }
    text = tomli_w.dumps(part_data(part))
    assert registry().build(kind, tomllib.loads(text)) == part


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_written_recipe_leaves_nothing_to_defaults(pruner):
    data = registry().recipe(pruner).to_data()
    neutral = {role for role in NEUTRAL if role not in data}
    for role in ROLES.keys() - neutral:
        part = registry().part(KIND_OF_ROLE[role], data[role]["name"]).thing
        unset = {name for name, info in part.model_fields.items() if info.default is None}
        assert data[role].keys() >= {"name", *part.model_fields} - unset
    assert data.keys() >= {"pruner", "help", "finalize"}
    recipe = registry().recipe(pruner)
    assert {role: name_of(getattr(recipe, role)) for role in neutral} == {
        role: NEUTRAL[role] for role in neutral
    }


def name_of(part):
    return None if part is None else part.name


def rounds_numbers(text: str) -> str:
    return text.replace("0.3333333333333333", "0.3333")


def forgets_fields(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("weight"))


def forgets_the_finish(text: str) -> str:
    return text.replace('finalize = "alive"\n', "")


def forgets_to_rewind(text: str) -> str:
    return text.replace("[rewind]\nclock = 2.5\n", "")


@pytest.mark.parametrize(
    "spoil", [rounds_numbers, forgets_fields, forgets_the_finish, forgets_to_rewind]
)
def test_a_writer_that_loses_something_would_be_noticed(spoil, monkeypatch):
    recipe = registry().recipe(
        "gem_miner",
        options={"regularizer.weight": 1 / 3, "finalize": "alive", "rewind.clock": 2.5},
    )
    assert survives_as_toml(recipe)
    whole = Recipe.to_toml
    monkeypatch.setattr(Recipe, "to_toml", lambda self: spoil(whole(self)))
    assert not survives_as_toml(recipe)


def test_recipes_differ_when_any_field_differs():
    recipe = registry().recipe("gem_miner")
    assert recipe != registry().recipe("gem_miner", options={"regularizer.weight": 0.5})
    assert recipe != registry().recipe("gem_miner", parts={"rounding": "bernoulli"})
    assert recipe != registry().recipe("gem_miner", options={"pruner": "other"})


def test_a_recipe_that_does_not_rewind_says_nothing_about_it():
    assert "rewind" not in registry().recipe("gem_miner").to_data()
    assert registry().recipe("lr_rewinding").to_data()["rewind"] == {"clock": 0.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rewind.weight": 1}, "rewind.weight does not exist; did you mean 'weights'"),
        ({"rewind.clock": -1}, "rewind.clock = -1: should be greater than or equal to 0"),
        ({"rewind.clock": "soon"}, "rewind.clock = 'soon': should be a valid number"),
        ({"rewind": 3}, "rewind = 3: should be an object"),
    ],
)
def test_what_is_wrong_with_a_rewind_is_said_with_its_name(options, words):
    with pytest.raises(OptionError, match=words):
        registry().recipe("imp_long_cold", options=options)


SEAMS = {
    "train": {"train": "both"},
    "what is prunable": {"prunable.skip": ["head.*"], "prunable.kinds": ["conv"]},
    "parts within parts": {"scores.of": {"name": "lamp", "of": {"name": "snip", "batches": 3}}},
}


@pytest.mark.parametrize("survives", WAYS)
@pytest.mark.parametrize("options", SEAMS.values(), ids=SEAMS)
def test_what_came_later_survives_being_written_down(options, survives):
    parts = {"scores": "lamp", "grow": "random", "objective": "kl", "structure": "nm"}
    recipe = registry().recipe("magnitude", parts=parts, options=options)
    assert survives(recipe)
    assert recipe != registry().recipe("magnitude", parts=parts)
    assert {"grow", "objective", "structure"} <= recipe.to_data().keys()


def test_a_part_within_a_part_is_built_with_its_fields():
    [table] = tomllib.loads('of = [{name = "snip", batches = 3}]')["of"]
    recipe = registry().recipe("lamp", options={"scores.of": table})
    assert (recipe.scores.of.name, recipe.scores.of.batches) == ("snip", 3)
    assert recipe.to_data()["scores"]["of"]["batches"] == 3
    assert registry().recipe("lamp", options={"scores.of": "random"}).scores.of.name == "random"


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ("snp", "unknown scores 'snp'; did you mean 'snip'"),
        ({"name": "snip", "batch": 3}, "batch does not exist; did you mean 'batches'"),
        ({"batches": 3}, "should be the name of a part"),
        (3, "scores.of = 3"),
    ],
)
def test_what_is_wrong_with_a_part_within_a_part_is_told(of, words):
    with pytest.raises(GemkitError, match=words):
        registry().recipe("lamp", options={"scores.of": of})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prunable.skips": ["a"]}, "prunable.skips does not exist; did you mean 'skip'"),
        ({"prunable.kinds": ["conf"]}, "prunable.kinds.0 = 'conf'"),
        ({"prunable": 3}, "prunable = 3: should be an object"),
        ({"train": "everything"}, "train = 'everything'"),
    ],
)
def test_what_is_wrong_with_prunable_or_train_is_told(options, words):
    with pytest.raises(OptionError, match=words):
        registry().recipe("gem_miner", options=options)
