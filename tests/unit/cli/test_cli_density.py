"""`--density` and `--sparsity`: fractions and percentages, and never both."""

import pytest
from cli_runs import TINY, answer, commands_in

from gemkit.cli.ratios import learn, search
from gemkit.cli.run import run

PLAIN = tuple(word for word in TINY if word not in {"--density", "0.3"})


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("words", "density"),
    [
        (["--density", "5%"], 0.05),
        (["--sparsity", "0.95"], 0.05),
        (["--sparsity", "95%"], 0.05),
        (["--sparsity=98.6%"], 0.014),
        ([], 0.05),
    ],
)
@pytest.mark.parametrize("command", [run, search, learn])
def test_every_command_that_takes_a_density_takes_both_words(command, words, density):
    context = command.make_context("x", list(words))
    assert context.params["density"] == density
    assert "sparsity" not in context.params


def test_a_run_keeps_what_a_sparsity_leaves(gemkit):
    asked = answer(gemkit("run", "--pruner", "random", *PLAIN, "--sparsity", "70%", "--json"))
    same = answer(gemkit("run", "--pruner", "random", *PLAIN, "--density", "0.3", "--json"))
    assert asked["density_target"] == same["density_target"] == 0.3
    assert asked["kept"] == same["kept"]
    assert "-d0.3-s0" in asked["run_dir"]


@pytest.mark.parametrize("words", ["--density 0.1 --sparsity 0.9", "--sparsity 90% --density 10%"])
def test_both_are_refused_in_one_sentence(words, gemkit, tmp_path):
    result = gemkit("run", *PLAIN, *words.split())
    assert result.exit_code == 2
    assert result.stderr.count("--density and --sparsity both say how much to keep; give one.") == 1
    assert not list(tmp_path.iterdir())


def test_a_sparsity_replaces_the_density_of_a_preset(gemkit):
    small = ("--model", "conv4", "--pruner", "random", *PLAIN)
    result = gemkit("run", "--preset", "demo/gem_miner", *small, "--sparsity", "60%", "--json")
    assert answer(result)["density_target"] == 0.4


def test_a_sparsity_that_a_pruner_ignores_is_told(gemkit):
    result = gemkit("run", "--pruner", "dense", *PLAIN, "--sparsity", "70%")
    assert "insists on density 1; the given density 0.3 is ignored" in result.stderr


def test_the_help_shows_both(gemkit):
    text = " ".join(gemkit("run", "--help").stdout.split())
    assert "to keep: 0.05, or 5%. [default: 0.05]" in text
    assert "instead of --density: 0.95, or 95%." in text
