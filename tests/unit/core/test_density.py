"""Densities as they are written: exact, in percent, or as the sparsity beside them."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import CPU, PLAN, tiny_data, tiny_net

from gemkit import RunConfig, importance, load_plugins, search, select
from gemkit.core.density import density_from, density_of_sparsity
from gemkit.core.errors import OptionError
from gemkit.presets.preset import preset_from, presets_in
from gemkit.runs.read_config import config_from, config_from_toml

PRESET = {"help": "for tests", "pruner": "snip", "model": "conv4", "dataset": "digits"}


@pytest.mark.parametrize("given", [0.05, "0.05", "5e-2", "5%", " 5 %", "5.0%", ".05", "050e-3"])
def test_a_density_is_the_decimal_that_is_written(given):
    assert density_from(given) == 0.05


@pytest.mark.parametrize("given", [0.95, "0.95", "95%", "95.0 %", "9.5e-1"])
def test_a_sparsity_is_exactly_the_rest(given):
    assert density_of_sparsity(given) == 0.05 != 1 - 0.95


@given(st.integers(1, 10**6))
def test_both_words_and_both_ways_of_writing_mean_the_same(parts):
    """Of a million weights, so many stay; whatever is written, the nearest double is meant."""
    exact = Fraction(parts, 10**6)
    texts = [f"{parts}e-6", f"{parts}e-4%"]
    rest = [f"{10**6 - parts}e-6", f"{10**6 - parts}e-4%"]
    assert {density_from(text) for text in texts} == {float(exact)}
    assert {density_of_sparsity(text) for text in rest} == {float(exact)}


@pytest.mark.parametrize(
    ("read", "given", "words"),
    [
        (density_from, "0", "0 is not in (0, 1]: a density is the fraction to keep"),
        (density_from, "-5%", "-5% is not in (0, 1]"),
        (density_from, "5", "write 5% if that is meant"),
        (density_from, "101%", "101% is not in (0, 1]: a density is the fraction to keep"),
        (density_from, "1e-9999999999", "is not in (0, 1]"),
        (density_from, "1e9999999999", "is not in (0, 1]"),
        (density_from, "nan", "nan is not a finite number"),
        (density_from, "inf", "inf is not a finite number"),
        (density_from, "five", "'five' is not a number; write a fraction or a percentage"),
        (density_from, "%", "'%' is not a number"),
        (density_from, "5%%", "'5%%' is not a number"),
        (density_from, "1/20", "'1/20' is not a number"),
        (density_of_sparsity, "1", "1 is not in [0, 1): a sparsity is the fraction to prune"),
        (density_of_sparsity, "100%", "100% is not in [0, 1)"),
        (density_of_sparsity, "95", "write 95% if that is meant"),
        (density_of_sparsity, "-0.1", "-0.1 is not in [0, 1)"),
        (density_of_sparsity, "nan%", "nan% is not a finite number"),
    ],
)
def test_what_is_no_fraction_is_refused(read, given, words):
    with pytest.raises(ValueError, match="is not") as caught:
        read(given)
    assert words in str(caught.value)


def test_nothing_pruned_is_a_sparsity_of_zero():
    assert (
        density_of_sparsity("0")
        == density_of_sparsity(0)
        == density_from(1)
        == density_from("100%")
        == 1
    )


# --- where they can be given ---------------------------------------------------------------------


def test_python_takes_a_percentage():
    whole = {"a": torch.arange(100.0)}
    assert select(whole, "5%")["a"].sum() == 5
    how = {"plan": PLAN, "runtime": CPU, "on_collapse": "warn"}
    ticket = search("magnitude", tiny_net(), tiny_data(), density="30%", **how)
    assert ticket.info.density_target == 0.3
    assert importance("magnitude", tiny_net(), [], density="30%")
    for call in (
        lambda: select(whole, "5"),
        lambda: search("magnitude", tiny_net(), tiny_data(), density="much"),
        lambda: importance("magnitude", tiny_net(), [], density="0%"),
    ):
        with pytest.raises(OptionError, match=r"^density: "):
            call()


def test_a_configuration_takes_a_percentage():
    assert RunConfig(density="1.4%").density == 0.014
    assert RunConfig(density="0.05").density == 0.05
    assert config_from({"density": "1.4%"}).density == 0.014
    assert config_from_toml('density = "1.4%"').density == 0.014
    assert preset_from("x/y", PRESET | {"density": "1.4%"}).density == 0.014


@pytest.mark.parametrize("written", ["sparsity = 0.986", 'sparsity = "98.6%"', 'sparsity="0.986"'])
def test_a_file_may_say_sparsity(written, tmp_path):
    config = config_from_toml(f"seed = 3\n{written}\n[search]\nmilestones = [0.5]")
    assert (config.density, config.seed, config.search.milestones) == (0.014, 3, (0.5,))
    assert "sparsity" not in config.to_toml()
    file = tmp_path / "mine.toml"
    lines = [f"{key} = {value!r}" for key, value in PRESET.items()]
    file.write_text("[presets.one]\n" + "\n".join([*lines, written]))
    [(name, data)] = presets_in(file).items()
    assert preset_from(name, data).density == 0.014


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"density": 0.1, "sparsity": 0.9}, "density and sparsity both say how many weights"),
        ({"sparsity": "x"}, "sparsity = 'x': 'x' is not a number"),
        ({"sparsity": True}, "sparsity = True: should be a number, or a text such as '95%'"),
        ({"sparsity": 95}, "write 95% if that is meant"),
        ({"density": "0%"}, "density = '0%': 0% is not in (0, 1]"),
        ({"density": "five"}, "density = 'five': 'five' is not a number"),
    ],
)
def test_a_table_with_a_mistake_gets_a_sentence(table, words):
    for read in (config_from, lambda data: preset_from("x/y", {**PRESET, **data})):
        with pytest.raises(OptionError) as caught:
            read(table)
        assert words in str(caught.value)


def test_a_recipe_may_insist_on_a_percentage():
    recipe = load_plugins(only=()).recipe("magnitude", options={"density": "40%"})
    assert recipe.density == 0.4
    assert recipe.to_data()["density"] == 0.4
