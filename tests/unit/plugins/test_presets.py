"""Presets resolve, run, match the paper and the authors' configurations, and can be overridden."""

import json
import re
import statistics
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch
from cli_runs import commands_in

from benchmarks import digits
from docs.tools import presets
from gemkit import Data, load_plugins
from gemkit.cli.configure import _OPTION_OF, fields_left
from gemkit.cli.run import run
from gemkit.core.errors import OptionError, UnknownNameError
from gemkit.models.part import ModelPart
from gemkit.parts.fit import check_fit, needs_training
from gemkit.presets.preset import preset_from, presets_in
from gemkit.pruning.finetune import evaluate, finetune
from gemkit.pruning.search import search
from gemkit.reproduce.synthetic import tried
from gemkit.runs.resolved import resolve
from gemkit.training.plan import Plan, Runtime

REGISTRY = load_plugins(only=())
PRESETS = {name: entry.thing for name, entry in REGISTRY.presets.items()}
SHAPES = {
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "imagefolder": ((3, 16, 16), 10),
    "tiny_imagenet": ((3, 64, 64), 200),
    "caltech101": ((3, 32, 32), 101),
    "digits": ((1, 8, 8), 10),
}
"""The image shapes of the presets; Caltech's photographs are larger in reality."""


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_and_fits(name):
    job = resolve(REGISTRY, PRESETS[name])
    epochs = job.search.epochs if needs_training(job.recipe) else 0
    check_fit(job.recipe, epochs=epochs, density=job.density)
    assert job.density == PRESETS[name].density
    assert job.recipe == PRESETS[name].made(REGISTRY)
    assert preset_from(name, tomllib.loads(PRESETS[name].to_toml())) == PRESETS[name]


# --- two steps -----------------------------------------------------------------------------------


def combination(preset):
    """Return what makes runs different in kind: network, parts and optimizers."""
    recipe = preset.made(REGISTRY)
    parts = {role: part.name for role, part in recipe.parts().items()}
    optimizers = [preset.search.optimizer, preset.finetune.optimizer]
    return json.dumps([preset.model, _name(preset.dataset), parts, optimizers])


def _name(part):
    return part if isinstance(part, str) else part["name"]


KINDS = {combination(preset): name for name, preset in reversed(PRESETS.items())}
NETWORKS = {
    json.dumps([PRESETS[name].model, _name(PRESETS[name].dataset)]): name for name in KINDS.values()
}
"""One preset for each network, which is built at its real width; the others are narrow."""


@cache
def world(model, dataset):
    """Build the real network, with a few fake images of the same size and classes."""
    shape, classes = SHAPES[dataset]
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10, *shape), generator=rng, dtype=torch.uint8)
    part = (images, torch.arange(10))
    data = Data.of_tensors(train=part, validation=part, test=part, classes=classes)
    network = REGISTRY.build("models", json.loads(model))
    assert isinstance(network, ModelPart)
    return data, network.skeleton(data.shape, data.classes)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", KINDS.values())
def test_every_kind_of_preset_takes_two_steps(name):
    """Presets that differ from one of these only in numbers run the same code."""
    preset = PRESETS[name]
    narrow = preset if name in NETWORKS.values() else tried(preset, REGISTRY)
    data, network = world(json.dumps(narrow.model), _name(preset.dataset))
    recipe = preset.made(REGISTRY)
    rounds = recipe.schedule.name == "iterative"
    changes = {"schedule.every": 2 if rounds else 1} if hasattr(recipe.schedule, "every") else {}
    if "rounds" in recipe.to_data()["schedule"]:
        changes = {"schedule.rounds": 2}
    changes |= {"rewind.clock": 0.0} if recipe.rewind.happens else {}
    changes |= {"rewind.weights": 1.0} if recipe.rewind.weights else {}
    changes |= {"scores.per_class": 1} if recipe.scores.name == "grasp" else {}
    small = REGISTRY.recipe(recipe.to_data(), options=changes)
    few = {"epochs": 2, "batch_size": 10, "lr": 1e-3}
    plans = {
        phase: Plan.model_validate({**getattr(preset, phase).model_dump(), **few})
        for phase in ("search", "finetune")
    }
    cpu = Runtime(device="cpu")
    ticket = search(
        small,
        network,
        data,
        density=0.8 if rounds else narrow.density,
        plan=plans["search"],
        runtime=cpu,
        on_collapse="warn",
    )
    assert ticket.info.epochs == (2 if needs_training(small) else 0)
    trained = finetune(ticket, network, data, plan=plans["finetune"], runtime=cpu)
    assert trained.kept == ticket.kept
    assert 0 <= evaluate(trained, network, data, runtime=cpu) <= 1


# --- the numbers ---------------------------------------------------------------------------------

ROWS = {
    # preset: T, optimizer, learning rate, λ, fine-tuning's learning rate, batch, epochs, milestones
    "resnet20-cifar10-50@paper": (8, "sgd", 0.05, 1e-8, 0.1, 128, 150, (80, 120)),
    "resnet20-cifar10-13.74@paper": (5, "sgd", 0.1, 1e-5, 0.01, 128, 150, (80, 120)),
    "resnet20-cifar10-13.74@code": (5, "sgd", 0.1, 5e-6, 0.01, 128, 150, (80, 120)),
    "resnet20-cifar10-3.73@paper": (5, "sgd", 0.1, 3e-5, 0.01, 128, 150, (80, 120)),
    "resnet20-cifar10-1.44@paper": (5, "sgd", 0.1, 1e-4, 0.01, 128, 150, (80, 120)),
    "resnet20-cifar10-0.59@paper": (5, "sgd", 0.1, 1e-4, 0.01, 128, 150, (80, 120)),
    "resnet20-cifar10-0.59@code": (8, "sgd", 0.1, 1e-4, 0.01, 128, 150, (80, 120)),
    "mobilenet_v2-cifar10-50@paper": (5, "sgd", 0.05, 0, 0.1, 128, 300, (150, 250)),
    "mobilenet_v2-cifar10-50@code": (5, "sgd", 0.1, 0, 0.01, 128, 300, (150, 250)),
    "mobilenet_v2-cifar10-20@paper": (5, "sgd", 0.1, 3e-6, 0.1, 128, 300, (150, 250)),
    "mobilenet_v2-cifar10-5@paper": (5, "sgd", 0.1, 7e-6, 0.1, 128, 300, (150, 250)),
    "mobilenet_v2-cifar10-1.44@paper": (5, "sgd", 0.1, 1e-4, 0.1, 128, 300, (150, 250)),
    "mobilenet_v2-cifar10-1.44@code": (5, "sgd", 0.1, 1.5e-5, 0.01, 128, 300, (150, 250)),
    "vgg16-cifar10-50@paper": (5, "sgd", 0.01, 0, 0.05, 128, 200, (100, 150)),
    "vgg16-cifar10-50@code": (5, "adam", 0.001, 1e-6, 0.05, 128, 200, (100, 150)),
    "vgg16-cifar10-2.5@paper": (5, "sgd", 0.01, 1e-6, 0.05, 128, 200, (100, 150)),
    "vgg16-cifar10-0.5@code": (5, "adam", 0.01, 1e-6, 0.05, 128, 200, (100, 150)),
    "wide_resnet28_2-cifar10-50@paper": (5, "sgd", 0.1, 0, 0.1, 128, 150, (80, 120)),
    "wide_resnet28_2-cifar10-50@code": (5, "sgd", 0.1, 0, 0.01, 128, 150, (80, 120)),
    "wide_resnet28_2-cifar10-20@paper": (10, "sgd", 0.1, 1e-5, 0.01, 128, 150, (80, 120)),
    "wide_resnet28_2-cifar10-0.5@paper": (10, "sgd", 0.1, 1e-5, 0.01, 128, 150, (80, 120)),
    "resnet18-tiny_imagenet-50@paper": (10, "sgd", 0.1, 0, 0.1, 256, 200, (100, 150)),
    "resnet18-tiny_imagenet-50@code": (10, "sgd", 0.1, 0, 0.1, 128, 200, (100, 150)),
    "resnet18-tiny_imagenet-5@paper": (5, "sgd", 0.001, 8e-6, 0.1, 256, 200, (100, 150)),
    "resnet18-tiny_imagenet-1.4@code": (5, "adam", 0.001, 5e-6, 0.1, 256, 200, (100, 150)),
    "resnet18-tiny_imagenet-0.5@paper": (5, "sgd", 0.001, 1e-5, 0.1, 256, 200, (100, 150)),
    "resnet50-tiny_imagenet-50@paper": (5, "adam", 0.01, 0, 0.1, 256, 150, (80, 120)),
    "resnet50-tiny_imagenet-1.4@paper": (5, "adam", 0.01, 1e-6, 0.1, 256, 150, (80, 120)),
    "resnet50-tiny_imagenet-1.4@code": (5, "adam", 0.01, 1e-6, 0.1, 128, 150, (80, 120)),
    "resnet50-caltech101-50@paper": (5, "adam", 0.01, 0, 0.0001, 16, 50, (20, 40)),
    "resnet50-caltech101-5@paper": (5, "adam", 0.01, 1e-6, 0.0001, 16, 50, (20, 40)),
    "resnet50-caltech101-5@code": (5, "adam", 0.001, 2e-6, 0.0001, 16, 50, (25, 33)),
    "resnet50-caltech101-2@code": (5, "adam", 0.001, 5e-6, 0.0001, 16, 50, (25, 33)),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_match_their_sources(name):
    period, optimizer, lr, weight, finetune_lr, batch, epochs, milestones = ROWS[name]
    job = resolve(REGISTRY, PRESETS[f"rare_gems/{name}"])
    assert (job.recipe.schedule.every, job.recipe.regularizer.weight) == (period, weight)
    assert (job.search.optimizer, job.search.lr, job.search.weight_decay) == (optimizer, lr, 0)
    assert job.search.lr_schedule == "cosine"
    assert job.finetune.lr == finetune_lr
    assert job.finetune.weight_decay == 1e-4
    assert {job.search.batch_size, job.finetune.batch_size} == {batch}
    assert {job.search.epochs, job.finetune.epochs} == {epochs}
    rates = [job.finetune.lr_at(epoch, 1) for epoch in range(epochs)]
    falls = [epoch for epoch in range(1, epochs) if rates[epoch] < rates[epoch - 1]]
    assert falls == list(milestones)


def test_every_row_of_the_appendix_has_a_preset():
    rows = {
        "resnet20-cifar10": (50, 13.74, 3.73, 1.44, 0.59),
        "mobilenet_v2-cifar10": (50, 20, 5, 1.44),
        "vgg16-cifar10": (50, 5, 2.5, 1.4, 0.5),
        "wide_resnet28_2-cifar10": (50, 20, 5, 1.44, 0.5),
        "resnet18-tiny_imagenet": (50, 5, 1.4, 0.5),
        "resnet50-tiny_imagenet": (50, 5, 1.4, 0.5),
        "resnet50-caltech101": (50, 5, 1.4, 0.5),
    }
    for family, densities in rows.items():
        for percent in densities:
            preset = PRESETS[f"rare_gems/{family}-{percent:g}@paper"]
            assert preset.density == pytest.approx(percent / 100)
            assert preset.made(REGISTRY).finalize == "rounded"


def test_paper_and_code_take_different_tickets_at_different_times():
    paper, code = (PRESETS[f"rare_gems/resnet20-cifar10-1.44@{word}"] for word in ("paper", "code"))
    assert paper.made(REGISTRY).schedule.timing == "paper"
    assert code.made(REGISTRY).schedule.timing == "authors"
    assert code.made(REGISTRY).finalize == "alive"
    assert paper.search == code.search


def test_a_name_without_a_variant_is_the_papers_or_else_the_codes():
    name = "rare_gems/resnet20-cifar10-0.59"
    assert REGISTRY.preset(name).thing == PRESETS[f"{name}@paper"] != PRESETS[f"{name}@code"]
    only = "rare_gems/resnet18-cifar10-5"
    assert f"{only}@paper" not in PRESETS
    assert REGISTRY.preset(only).thing == PRESETS[f"{only}@code"]
    with pytest.raises(UnknownNameError, match="did you mean 'demo/quick'"):
        REGISTRY.preset("demo/quik")


def test_published_accuracies():
    found = {
        name: (preset.expected.before, preset.expected.after)
        for name, preset in PRESETS.items()
        if preset.expected and not name.startswith("demo/")
    }
    ablation = {
        "edge_popup": (19.57, 24.47),
        "global_ep": (22.22, 34.42),
        "gradual_ep": (31.56, 63.54),
        "gradual_ep_l2": (19.67, 63.72),
    }
    for pruner, pair in ablation.items():
        assert found[f"baselines/{pruner}-resnet20-cifar10-0.59"] == pair
    assert found["rare_gems/resnet20-cifar10-0.59@paper"] == (45.30, 66.15)
    # The code fine-tunes another network than the one whose accuracy the paper reports.
    assert found["rare_gems/resnet20-cifar10-0.59@code"] == (None, 66.15)
    assert found["rare_gems/resnet20-cifar10-1.44@paper"] == (None, 77.89)
    assert found["rare_gems/resnet20-cifar10-1.44-long@paper"] == (None, 79.50)
    assert found["baselines/smart_ratio_v3-resnet20-cifar10-1.44"] == (None, 69.78)
    assert found["baselines/lr_rewinding-resnet20-cifar10-1.44"] == (None, 80.21)


def test_the_demos_expect_what_was_measured():
    rows = digits.LEDGER.rows()
    demos = [preset for name, preset in PRESETS.items() if name.startswith("demo/")]
    expected = [preset for preset in demos if preset.expected]
    assert len(expected) == 5
    for preset in expected:
        key = (preset.pruner, preset.density)
        mine = [row for row in rows if (row["pruner"], row["density"]) == key]
        for moment in ("before", "after"):
            mean = statistics.mean(row[moment] for row in mine)
            assert getattr(preset.expected, moment) == pytest.approx(100 * mean, abs=0.06)


# --- files ---------------------------------------------------------------------------------------

FILE = """
[families.all]
help = "One of mine"
pruner = "gem_miner"
model = "conv4"
dataset = "digits"
density = 0.1
recipe = {{ finalize = "alive", schedule.every = 3 }}
{more}
"""


def presets_of(tmp_path, more):
    file = tmp_path / "mine.toml"
    file.write_text(FILE.format(more=more))
    return presets_in(file)


def test_a_preset_is_its_family_with_changes(tmp_path):
    more = """
    code = { density = 0.3, recipe.schedule.timing = "authors" }
    [presets.one]
    like = "all"
    recipe.schedule.every = 4
    [presets.two]
    like = "one"
    paper = {}
    code.recipe.schedule.timing = "paper"
    [presets.three]
    like = "one"
    code = false
    """
    found = {name: preset_from(name, data) for name, data in presets_of(tmp_path, more).items()}
    assert set(found) == {"mine/one@code", "mine/two@paper", "mine/two@code"}
    assert found["mine/two@paper"].recipe == {"finalize": "alive", "schedule": {"every": 4}}
    assert found["mine/two@paper"].density == 0.1
    assert found["mine/two@code"].recipe["schedule"] == {"every": 4, "timing": "paper"}
    assert found["mine/two@code"].density == 0.3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[presets.one]\nlike = 'non'", "'one' is like 'non', which does not exist"),
        ("[presets.one]\nlike = 'one'", "'one' is like itself"),
        ("[preset.one]\nlike = 'all'", r"has tables \['preset'\]; use families and presets"),
        ("[presets.one", "mine.toml: cannot be read"),
    ],
)
def test_a_faulty_file_is_reported(tmp_path, more, message):
    with pytest.raises(OptionError, match=message):
        presets_of(tmp_path, more)


GOOD = {"help": "x", "pruner": "gem_miner", "model": "conv4", "dataset": "digits", "density": 0.1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"densty": 0.2}, "densty does not exist; did you mean 'density'"),
        ({"density": 2.0}, "density = 2.0"),
        ({"search": {"epoch": 3}}, "search.epoch does not exist; did you mean 'epochs'"),
        ({"expected": {"afte": 3.0, "source": "x"}}, "expected.afte does .* did you mean 'after'"),
        ({"finetune": {"lr": -1.0}}, "finetune.lr = -1.0"),
        (
            {"recipe": {"scedule": {}}},
            "recipe = .* a recipe has no 'scedule'; did you mean 'schedule'",
        ),
        ({"expected": {"after": 90.0}}, "expected.source must be given"),
    ],
)
def test_an_unknown_key_or_a_bad_value_is_reported(changes, message):
    with pytest.raises(OptionError, match=f"preset 'mine/one': {message}"):
        preset_from("mine/one", GOOD | changes)


def test_an_unknown_field_of_a_part_is_reported_when_the_preset_is_used():
    preset = preset_from("mine/one", GOOD | {"recipe": {"schedule": {"evry": 3}}})
    with pytest.raises(OptionError, match=r"schedule.evry does not exist; did you mean 'every'"):
        resolve(REGISTRY, preset)


# --- the command line ----------------------------------------------------------------------------

MINE = """
from gemkit import hookimpl


@hookimpl
def gemkit_presets():
    return {
        "mine/one": {
            "help": "One of mine",
            "pruner": "gem_miner",
            "density": 0.3,
            "model": {"name": "conv4", "width": 4},
            "dataset": {"name": "fake", "samples": 60},
            "recipe": {
                "regularizer": {"weight": 0.003},
                "rounding": "bernoulli",
                "finalize": "alive",
            },
            "search": {"epochs": 3, "batch_size": 16, "lr": 0.7},
            "finetune": {"epochs": 2, "batch_size": 12},
            "on_collapse": "warn",
            "expected": {"after": 55.5, "source": "nowhere"},
        }
    }
"""


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    return commands_in(tmp_path, monkeypatch)


def config(gemkit, tmp_path, *options):
    words = ("--preset", "mine/one", "--plugin", "mine.py", "--out", "out", "--device", "cpu")
    result = gemkit("run", *words, *options)
    assert result.exit_code == 0, result.stderr
    return tomllib.loads((tmp_path / "out" / "config.toml").read_text())


def test_a_run_takes_everything_from_its_preset(gemkit, tmp_path):
    said = config(gemkit, tmp_path)
    assert (said["density"], said["on_collapse"]) == (0.3, "warn")
    assert said["model"]["width"] == 4
    assert said["dataset"]["samples"] == 60
    assert said["recipe"]["finalize"] == "alive"
    assert said["recipe"]["rounding"]["name"] == "bernoulli"
    assert said["recipe"]["regularizer"] == {"name": "l2", "weight": 0.003}
    assert [said["search"][key] for key in ("epochs", "batch_size", "lr")] == [3, 16, 0.7]
    assert [said["finetune"][key] for key in ("epochs", "batch_size")] == [2, 12]


def test_options_override_the_preset(gemkit, tmp_path):
    words = "--density 0.4 --epochs 4 --batch-size 10 --regularizer l1 --model conv4"
    own = "-o finetune.epochs=1 -o finetune.batch_size=9 -o finalize=rounded"
    said = config(gemkit, tmp_path, *words.split(), *own.split())
    assert said["density"] == 0.4
    assert [said["search"][key] for key in ("epochs", "batch_size", "lr")] == [4, 10, 0.7]
    assert [said["finetune"][key] for key in ("epochs", "batch_size")] == [1, 9]
    assert said["recipe"]["regularizer"] == {"name": "l1", "weight": 1e-4}, "another part's own"
    assert said["model"]["width"] == 16, "another network's own"
    assert said["recipe"]["finalize"] == "rounded"
    assert said["recipe"]["rounding"]["name"] == "bernoulli", "the preset says nothing else"


def test_another_pruner_uses_its_own_recipe(gemkit, tmp_path):
    said = config(gemkit, tmp_path, "--pruner", "random")
    assert said["recipe"]["scores"]["name"] == "random"
    assert said["recipe"]["finalize"] == "rounded"
    assert said["recipe"]["regularizer"]["name"] == "none"
    assert said["model"]["width"] == 4


def test_every_option_that_a_preset_has_overrides_it():
    sections = ("Training", "Network and data")
    options = {one.name for one in run.params if getattr(one, "section", "") in sections}
    # Options that are not fields.
    elsewhere = {"density", "sparsity", "metric", "on_collapse", "model", "dataset"}
    nowhere = {"seed", "data_dir", "download"}
    assert options == set(_OPTION_OF.values()) | elsewhere | nowhere


@pytest.mark.parametrize(
    ("option", "field"), [("train_on", "dataset.train_on"), ("bn", "model.bn"), ("lr", "search.lr")]
)
def test_an_option_overrides_its_field(option, field):
    preset = preset_from(
        "mine/one",
        GOOD
        | {"dataset": {"name": "cifar10", "train_on": "full"}, "search": {"lr": 0.1}}
        | {"model": {"name": "conv4", "bn": "affine"}},
    )
    kind, name = field.split(".")
    for given, expected in ((False, True), (True, False)):
        left = fields_left(preset, lambda name, yes=given: yes and name == option)
        assert (name in left.get(kind, {})) is expected


def test_presets_are_listed_and_printed(gemkit):
    listed = gemkit("presets", "--plugin", "mine.py").stdout
    [line] = [line for line in listed.splitlines() if line.startswith("mine/one")]
    assert line.split()[1:] == ["55.5", "nowhere"]
    assert "rare_gems/resnet20-cifar10-1.44@paper" in listed
    printed = gemkit("presets", "mine/one", "--plugin", "mine.py").stdout
    assert preset_from("mine/one", tomllib.loads(printed)).search.lr == 0.7
    some = json.loads(gemkit("presets", "rare_gems/vgg16", "--json").stdout)["presets"]
    assert len(some) == 10
    assert {row["expected"] is None for row in some} == {True}
    missing = gemkit("presets", "rare_gem/vgg")
    assert missing.exit_code == 2
    assert "unknown preset 'rare_gem/vgg'" in missing.stderr
    assert gemkit("run", "--preset", "mine/on", "--plugin", "mine.py").exit_code == 2


# --- the page ------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "presets.md").read_text()


def test_the_list_of_presets_is_the_registry(tmp_path):
    """Where it is not: python -m docs.tools.presets docs/presets.md."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    presets.main([str(page)])
    assert page.read_text() == PAGE
    assert all(f"| `{name}` |" in PAGE for name in PRESETS)


def test_the_plugin_in_the_documentation_registers_its_preset(tmp_path, monkeypatch):
    [plugin] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    [data] = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(plugin)
    (tmp_path / "mine.toml").write_text(data)
    registry = load_plugins(files=[tmp_path / "mine.py"], only=())
    job = resolve(registry, registry.preset("mine/digits-5").thing)
    assert (job.density, job.recipe.schedule.every) == (0.05, 3)
    checked = commands_in(tmp_path, monkeypatch)("check-plugin", "mine.py")
    assert checked.exit_code == 0, checked.stdout
