"""Grids: which cells axes, zips, exclusions and variants make."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemkit.cli.axes import values_in
from gemkit.core.errors import OptionError
from gemkit.study.grid import Grid, canonical, grid_from, read_grid, replaced

FILE = """
name = "lambda"
seeds = 2
checks = ["shuffle"]
[base]
model = "conv4"
search.epochs = 10
[grid]
pruner = ["gem_miner", "snip"]
"regularizer.weight" = [1e-4, 1e-3]
[[zip]]
density = [0.05, 0.02]
search.lr = [2.0, 4.0]
[[exclude]]
pruner = "snip"
regularizer.weight = 1e-3
[variant.wide]
model.width = 64
[variant.usual]
"""


def test_a_file_of_everything(tmp_path):
    (tmp_path / "study.toml").write_text(FILE)
    grid = read_grid(tmp_path / "study.toml")
    points = grid.points()
    assert grid.name == "lambda"
    assert len(points) == 2 * 3 * 2 * 2  # seeds, pruner × weight − 1, zip, variants
    assert [point.axes["seed"] for point in points] == [0] * 12 + [1] * 12
    first = points[0]
    assert first.variant == "wide"
    assert first.data == {
        "model": {"name": "conv4", "width": 64},
        "search": {"epochs": 10, "lr": 2.0},
        "pruner": "gem_miner",
        "density": 0.05,
        "seed": 0,
        "recipe": {"regularizer": {"weight": 1e-4}},
    }
    assert points[1].data["model"] == "conv4"
    rates = {(point.axes["density"], point.axes["search.lr"]) for point in points}
    assert rates == {(0.05, 2.0), (0.02, 4.0)}
    pairs = {(point.axes["pruner"], point.axes["recipe.regularizer.weight"]) for point in points}
    assert ("snip", 1e-3) not in pairs
    assert len(pairs) == 3


def test_the_docstring_of_the_module_is_a_study(tmp_path):
    from gemkit.study import grid

    (tmp_path / "study.toml").write_text(grid.__doc__.partition("\n")[2])
    assert len(read_grid(tmp_path / "study.toml").points()) == 36


names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)


@given(names, st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True), st.integers(1, 3))
def test_a_grid_is_the_product_of_its_axes(pruners, epochs, seeds):
    grid = grid_from({"grid": {"pruner": pruners, "search": {"epochs": epochs}}, "seeds": seeds})
    found = {
        (one.data["pruner"], one.data["search"]["epochs"], one.data["seed"])
        for one in grid.points()
    }
    assert found == set(product(pruners, epochs, range(seeds)))
    assert len(grid.points()) == len(pruners) * len(epochs) * seeds


@given(names, st.data())
def test_what_is_excluded_is_all_that_is_missing(pruners, data):
    gone = data.draw(st.lists(st.sampled_from(pruners), max_size=len(pruners) - 1, unique=True))
    axes = {"pruner": pruners, "density": [0.1, 0.2]}
    exclude = [{"pruner": name, "density": 0.1} for name in gone]
    points = grid_from({"grid": axes, "exclude": exclude}).points()
    found = {(one.data["pruner"], one.data["density"]) for one in points}
    assert found == set(product(pruners, [0.1, 0.2])) - {(name, 0.1) for name in gone}


def test_a_part_is_set_before_its_fields_wherever_they_stand():
    base = {"model.width": 4, "search.lr": 0.5}
    points = grid_from({"base": base, "grid": {"model": ["conv4", "vgg16"]}}).points()
    assert [one.data["model"] for one in points] == [
        {"name": "conv4", "width": 4},
        {"name": "vgg16", "width": 4},
    ]
    [point] = grid_from({"base": {"model.width": 4}}).points()
    assert point.data["model"] == {"name": "conv4", "width": 4}, "the default network"


def test_a_table_with_a_name_is_a_whole_part():
    base = {"dataset": {"name": "fake", "samples": 60}}
    [one, other] = grid_from(
        {"base": base, "grid": {"dataset": ["digits", {"name": "fake"}]}}
    ).points()
    assert one.data["dataset"] == "digits"
    assert other.data["dataset"] == {"name": "fake"}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("pruner", "pruner"),
        ("regularizer.weight", "recipe.regularizer.weight"),
        ("recipe.regularizer.weight", "recipe.regularizer.weight"),
        ("finalize", "recipe.finalize"),
        ("prunable.skip", "recipe.prunable.skip"),
        ("objective.smoothing", "objective.smoothing"),
        ("search.lr", "search.lr"),
    ],
)
def test_axes_are_fields_as_in_options(path, field):
    assert canonical(path) == field


def test_sparsity_is_an_axis_of_density():
    points = grid_from({"grid": {"sparsity": [0.95, "98%"]}}).points()
    assert [one.data["density"] for one in points] == [0.05, 0.02]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"grid": {"pruners": ["snip"]}}, "'pruners' is no field of a run; did you mean 'pruner'"),
        ({"grid": {"pruner": "snip"}}, "should be a list of values"),
        ({"grid": {"pruner": []}}, "should be a list of values"),
        ({"zip": [{"density": [0.1, 0.2], "search.lr": [1.0]}]}, "density has 2, search.lr has 1"),
        ({"zip": [{}]}, "there is none"),
        ({"grid": {"density": [0.1]}, "zip": [{"density": [0.2]}]}, "'density' is given twice"),
        ({"grid": {"seed": [1]}, "seeds": 2}, "axis 'seed' is given twice"),
        ({"grid": {"density": [0.1]}, "exclude": [{"pruner": "snip"}]}, "no axis of this study"),
        ({"grid": {"density": [0.1]}, "exclude": [{}]}, "would leave out every cell"),
        ({"grid": {"density": [0.1]}, "exclude": [{"density": 0.1}]}, "exclude leaves none"),
        ({"base": {"model": True}, "grid": {"model.width": [8]}}, "'model' is True, not a table"),
        ({"seeds": 0}, "greater than or equal to 1"),
        ({"grids": {}}, "grids does not exist; did you mean 'grid'"),
        ({"grid": {"seed": list(range(2000)), "search.epochs": list(range(2000))}}, "is the most"),
    ],
)
def test_mistakes_are_one_sentence(data, words):
    with pytest.raises(OptionError, match=words.replace("(", r"\(")):
        grid_from(data).points()


@pytest.mark.parametrize(("text", "words"), [("a =", "not valid TOML"), (None, "cannot be read")])
def test_a_file_that_is_no_study_is_one_sentence(text, words, tmp_path):
    file = tmp_path / "study.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OptionError, match=words):
        read_grid(file)


def test_options_replace_what_a_file_says():
    grid = grid_from({"base": {"pruner": "snip"}, "grid": {"density": [0.1, 0.2]}, "seeds": 5})
    new = replaced(grid, {("density",): [0.3], ("seed",): [7, 8], ("pruner",): ["grasp"]})
    assert [(p.data["pruner"], p.data["density"], p.data["seed"]) for p in new.points()] == [
        ("grasp", 0.3, 7),
        ("grasp", 0.3, 8),
    ]
    both = replaced(Grid(), {("search.batch_size", "finetune.batch_size"): [8, 16]})
    assert [one.data for one in both.points()] == [
        {"search": {"batch_size": size}, "finetune": {"batch_size": size}} for size in (8, 16)
    ]
    zipped = grid_from({"zip": [{"density": [0.1], "pruner": ["snip"]}]})
    with pytest.raises(OptionError, match="in a zip of the study file"):
        replaced(zipped, {("density",): [0.2]})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,1.0", [0.1, 1.0]),
        ("[30, 60],[40, 80]", [[30, 60], [40, 80]]),
        ("[30, 60]", [[30, 60]]),
        ("sgd,adam", ["sgd", "adam"]),
        ("sgd,0.5", ["sgd", 0.5]),
        ('"a,b","c"', ["a,b", "c"]),
        ("true", [True]),
    ],
)
def test_values_of_an_axis_on_the_command_line(text, values):
    assert values_in(text, plain=False) == values
