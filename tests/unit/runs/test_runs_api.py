"""`gemkit.run` from Python does what the command line does, from one configuration."""

import json
import tomllib
from pathlib import Path

import pytest
from cli_runs import PLUGIN, TINY, answer, commands_in
from hypothesis import given, settings
from hypothesis import strategies as st
from kept import Killed
from pydantic import ValidationError
from torch import nn

import gemkit
from gemkit import Plan, Progress, RunConfig, RunSettings, Runtime, load_plugins
from gemkit.core.errors import FitError, ModelError, OptionError, UnknownNameError
from gemkit.core.events import EpochEnded, StepEnded
from gemkit.runs.config import RecordedConfig
from gemkit.runs.read_config import config_from_toml, load_config
from gemkit.runs.resolved import resolve
from gemkit.runs.run import resume, run

REGISTRY = load_plugins(only=())
SMALL = RunConfig(
    density=0.3,
    model={"name": "conv4", "width": 4},
    dataset={"name": "fake", "samples": 60},
    search=Plan(epochs=3, batch_size=16),
    finetune=Plan(batch_size=16),
    runtime=Runtime(device="cpu"),
)
FILES = ("ticket.safetensors", "finetuned.safetensors", "config.toml")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMKIT_PLUGINS", "")


def files(folder):
    return [Path(folder, name).read_bytes() for name in FILES]


def steady(data):
    """Return a result without times, and without the names of folders."""
    gone = ("seconds", "seconds_search", "ticket", "finetuned", "run_dir", "ladder", "checks")
    return {name: value for name, value in data.items() if name not in gone}


# --- the same as the command line ----------------------------------------------------------------

SAME = {
    "parts and fields": (
        *("--rounding", "bernoulli", "-o", "regularizer.weight=3e-4", "--seed", "3"),
        SMALL.replace(
            recipe={"rounding": "bernoulli", "regularizer": {"weight": 3e-4}},
            seed=3,
        ),
    ),
    "checks": (
        *("--pruner", "magnitude", "--check", "shuffle", "--check-seeds", "1"),
        SMALL.replace(pruner="magnitude", run=RunSettings(checks=["shuffle"], check_seeds=1)),
    ),
    "plans": (
        *("--pruner", "snip", "--finetune-epochs", "1", "-o", "finetune.optimizer=adam"),
        SMALL.replace(pruner="snip", finetune=Plan(epochs=1, batch_size=16, optimizer="adam")),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_python_and_the_command_line_make_the_same_run(case, tmp_path, monkeypatch, capsys):
    *words, config = SAME[case]
    command = commands_in(tmp_path, monkeypatch)
    shown = answer(command("run", *TINY, *words, "--out", "a", "--json"))
    capsys.readouterr()
    result = run(config, "b")
    assert capsys.readouterr() == ("", ""), "a library prints nothing"
    assert files("a") == files("b")
    assert steady(result.to_data()) == steady(shown)
    assert steady(json.loads(Path("b/result.json").read_text())) == steady(shown)
    assert result.load_ticket().digest() == gemkit.Ticket.load("a/ticket.safetensors").digest()
    assert result.load_finetuned().info.stage == "finetuned"
    measured = (shown.get("checks") or {}).get("trials")
    assert (result.checks or {}).get("trials") == measured
    assert bool(measured) == bool(config.run.checks)


def test_the_tickets_of_all_levels_can_be_loaded():
    config = SMALL.replace(
        pruner="imp_long_cold",
        density=0.6,
        search=Plan(epochs=1, batch_size=16),
        finetune=Plan(epochs=0),
    )
    result = run(config, "out")
    assert len(result.ladder) == len(result.load_ladder()) > 1
    assert result.load_ladder()[-1].density == result.density


def test_a_folder_is_named_after_the_run_and_kept_apart():
    config = SMALL.replace(pruner="random", finetune=Plan(epochs=0))
    folders = [run(config).run_dir for _ in range(2)]
    assert folders == [Path(f"runs/random-conv4-fake-d0.3-s0{end}") for end in ("", "-2")]


# --- interrupted and resumed ---------------------------------------------------------------------


def dying(phase, step):
    """Return an observer that kills the run at a step."""

    def observe(event):
        if event == StepEnded(phase, step):
            raise Killed

    return observe


@pytest.mark.parametrize("again", [lambda config: run(config, "b"), lambda config: resume("b")])
@pytest.mark.parametrize("moment", [("search", 5), ("finetune", 4)], ids=lambda one: one[0])
def test_a_killed_run_ends_with_the_same_files(again, moment):
    config = SMALL.replace(run=RunSettings(checkpoint_minutes=0.0))
    straight = run(config, "a")
    with pytest.raises(Killed):
        run(config, "b", observers=[dying(*moment)])
    assert not Path("b/result.json").exists()
    resumed = again(config)
    assert files("b") == files("a")
    assert steady(resumed.to_data()) == steady(straight.to_data())
    assert again(config) == resumed, "a finished run is not repeated"


def test_another_run_in_the_folder_is_refused_and_kept():
    run(SMALL.replace(pruner="random"), "out")
    before = files("out")
    with pytest.raises(OptionError, match=r"holds another run.*\n.*seed is 0 there and 1 here"):
        run(SMALL.replace(pruner="random", seed=1), "out")
    assert files("out") == before


def test_plugin_files_of_a_registry_are_recorded(tmp_path, monkeypatch):
    Path("mine.py").write_text(PLUGIN)
    registry = load_plugins(files=["mine.py"], only=())
    config = SMALL.replace(pruner="steady")
    with pytest.raises(Killed):
        run(config, "b", registry=registry, observers=[dying("finetune", 4)])
    assert load_config("b/config.toml").run.plugins == ["mine.py"]
    with pytest.raises(UnknownNameError, match=r"was started with --plugin mine\.py"):
        resume("b")
    with pytest.raises(OptionError, match="both plugins and a registry"):
        resume("b", registry=registry, plugins=["mine.py"])
    assert resume("b", registry=registry).pruner == "steady"
    command = commands_in(tmp_path, monkeypatch)
    assert answer(command("resume", "b", "--plugin", "mine.py", "--json"))["pruner"] == "steady"
    named = config.replace(run=RunSettings(plugins=["mine.py", "other.py"]))
    run(named, "c", registry=registry)
    assert load_config("c/config.toml").run.plugins == ["mine.py", "other.py"], "once each"


# --- observers and progress ----------------------------------------------------------------------


class Recorder(Progress):
    """Record all calls."""

    def __init__(self):
        self.calls = []

    def started(self, run):
        self.calls.append(("started", run.recipe.pruner))

    def note(self, text):
        self.calls.append(("note", text))

    def found(self, ticket, accuracy, levels):
        self.calls.append(("found", ticket.kept, accuracy, levels))

    def measured(self, trial, number, count, seconds):
        self.calls.append(("measured", trial.check, number, count))


def test_observers_and_progress_are_called():
    events, progress = [], Recorder()
    config = SMALL.replace(pruner="random", run=RunSettings(checks=["shuffle"], check_seeds=1))
    result = run(config, "out", observers=[events.append], progress=progress)
    ends = [event for event in events if isinstance(event, EpochEnded)]
    assert [event.epoch for event in ends] == [1, 2, 3]
    assert progress.calls == [
        ("started", "random"),
        ("found", result.kept, result.accuracy_before, []),
        ("measured", "shuffle", 1, 1),
    ]
    run(config, "out", progress=progress, observers=None)
    assert progress.calls[3] == ("note", "out is finished")


# --- the configuration ---------------------------------------------------------------------------

PLANS = st.builds(
    Plan,
    epochs=st.integers(0, 50),
    batch_size=st.integers(1, 512),
    optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
    lr=st.none() | st.floats(1e-6, 1.0),
    milestones=st.lists(st.floats(0.1, 0.9), max_size=3).map(tuple),
    allow_ties=st.booleans(),
)
TABLES = st.dictionaries(
    st.sampled_from(["width", "bn", "note"]),
    st.integers(-5, 5) | st.text(max_size=5) | st.lists(st.floats(-1, 1), max_size=2),
)
CONFIGS = st.builds(
    RunConfig,
    pruner=st.sampled_from(["gem_miner", "snip"]),
    density=st.floats(1e-6, 1.0),
    model=TABLES.map(lambda table: {"name": "conv4", **table}),
    dataset=st.sampled_from(["digits", "fake"]),
    recipe=st.dictionaries(st.sampled_from(["scores", "rounding"]), TABLES, max_size=2),
    search=PLANS,
    finetune=PLANS,
    seed=st.integers(0, 2**32 - 1),
    on_collapse=st.sampled_from(["error", "warn", "keep-one"]),
    runtime=st.builds(Runtime, device=st.sampled_from(["cpu", "auto"]), compact=st.booleans()),
    run=st.builds(RunSettings, checks=st.lists(st.text(max_size=5), max_size=2)),
)


@settings(max_examples=25, deadline=None)
@given(config=CONFIGS)
def test_a_configuration_reads_back_as_itself(config):
    text = config.to_toml()
    assert config_from_toml(text) == config
    assert config_from_toml(text).to_toml() == text
    named = set(RunConfig.model_fields) - {"run", "objective", "metric"}  # neutral ones are not
    assert named <= set(tomllib.loads(text)), "every default is written out"


@pytest.mark.parametrize("given", [{}, {"optimizer": "sgd"}, {"optimizer": "adam"}])
def test_a_search_optimizer_that_is_left_open_stays_open_in_a_file(given):
    read = config_from_toml(RunConfig(search=Plan(**given)).to_toml())
    assert read.search.model_fields_set & {"optimizer"} == set(given)
    assert read.search.optimizer == given.get("optimizer", "sgd")


def test_fine_tuning_takes_as_many_epochs_as_the_search_by_default():
    config = RunConfig(search=Plan(epochs=7), finetune=Plan(lr=0.1))
    assert resolve(REGISTRY, config).finetune == Plan(epochs=7, lr=0.1)
    assert config.to_data()["finetune"]["epochs"] == 7
    assert resolve(REGISTRY, config.replace(finetune=Plan(epochs=30))).finetune.epochs == 30


def test_unknown_fields_are_refused_in_one_message():
    text = "densty = 0.1\nseed = -1\n[search]\nepoch = 3\n[run]\ncheck = []\n"
    with pytest.raises(OptionError) as refused:
        config_from_toml(text)
    message = str(refused.value)
    assert message.startswith("this configuration: 4 problems")
    assert "densty does not exist; did you mean 'density'" in message
    assert "search.epoch does not exist; did you mean 'epochs'" in message
    assert "run.check does not exist; did you mean 'checks'" in message
    assert "seed = -1" in message
    with pytest.raises(ValidationError, match="densty"):
        RunConfig(densty=0.1)
    with pytest.raises(ValidationError, match="seed"):
        SMALL.replace(seed=-1)


@pytest.mark.parametrize("entry", [{"regularizr": {"weight": 9.0}}, {"finalise": "alive"}])
def test_misspelt_entries_of_a_recipe_are_refused(entry):
    with pytest.raises(ValidationError, match=r"a recipe has no .*did you mean"):
        SMALL.replace(recipe=entry)
    table = "\n".join(f"{key} = 'x'" for key in entry)
    with pytest.raises(OptionError, match="did you mean"):
        config_from_toml(f"[recipe]\n{table}\n")


def test_settings_of_a_resumed_run_are_validated():
    run(SMALL, "here")
    with pytest.raises(OptionError, match="checkpoint_minutes = -5"):
        resume("here", checkpoint_minutes=-5)
    assert resume("here").accuracy_after is not None  # the folder is as it was


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"density = ", "not valid TOML"), (b"\xff", "cannot be read"), (None, "cannot be read")],
)
def test_a_file_without_a_configuration_is_an_error(content, message, tmp_path):
    if content is not None:
        Path("mine.toml").write_bytes(content)
    with pytest.raises(OptionError, match=rf"mine\.toml.* {message}"):
        load_config("mine.toml")


def test_parts_that_do_not_exist_or_fit_are_refused_before_the_run():
    for config, error in (
        (SMALL.replace(pruner="gem_minor"), UnknownNameError),
        (SMALL.replace(recipe={"scores": 3}), OptionError),
        (SMALL.replace(recipe={"regularizer": {"weigth": 3}}), OptionError),
        (SMALL.replace(recipe={"scores": "magnitude"}), FitError),
        (SMALL.replace(run=RunSettings(checks=["nonsense"])), UnknownNameError),
        (SMALL.replace(run=RunSettings(observers=["nonsense"])), UnknownNameError),
    ):
        with pytest.raises(error):
            run(config, "out")
    assert not Path("out").exists()


@pytest.mark.parametrize("field", ["model", "dataset"])
def test_a_value_of_the_wrong_type_is_reported_without_internals(field):
    with pytest.raises(OptionError) as refused:
        config_from_toml(f"{field} = 3")
    assert str(refused.value) == (
        f"this configuration: {field} = 3: should be a valid string or an object"
    )


def test_a_network_itself_is_refused_and_search_is_named():
    with pytest.raises(ValidationError, match=r"'conv4', .*`gemkit.search` takes a module") as one:
        RunConfig(model=nn.Linear(3, 4))
    assert "function-after" not in str(one.value)


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ((None,), {}, "a RunConfig, a table or the name of a preset, not None"),
        ((SMALL, ""), {}, "the path is empty; write a dot"),
        ((SMALL,), {"observers": print}, "observers=<built-in function print> should be a list"),
        ((SMALL,), {"observers": [1]}, r"observers=\[1\] should be a list of functions"),
        ((SMALL,), {"observers": "csv"}, "observers='csv' should be a list of functions"),
        ((SMALL,), {"observers": ""}, "observers='' should be a list of functions"),
    ],
)
def test_arguments_of_the_wrong_kind_are_one_sentence(words, options, message):
    with pytest.raises(OptionError, match=message):
        run(*words, **options)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("made", [resume, lambda folder: gemkit.Study([SMALL], folder)])
def test_an_empty_folder_is_not_the_current_one(made):
    with pytest.raises(OptionError, match="the path is empty; write a dot"):
        made("")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"recipe": {"density": None}}, "density"),
        ({"recipe": {"regularizer": {"weight": None}}}, r"regularizer\.weight"),
        ({"model": {"name": "conv4", "sizes": [1, None]}}, r"sizes\.1"),
        ({"dataset": {"name": "fake", "samples": None}}, "samples"),
    ],
)
def test_none_is_refused_where_toml_cannot_express_it(fields, place):
    with pytest.raises(ValidationError, match=f"{place} is None.*leave it out"):
        RunConfig(**fields)


def test_a_table_is_a_configuration():
    table = {name: getattr(SMALL, name) for name in SMALL.model_fields_set}
    table |= {"pruner": "random", "finetune": {"epochs": 0, "milestones": [0.5]}}
    assert run(table, "a").pruner == "random"
    whole = {"recipe": REGISTRY.recipe("random"), "finetune": Plan(epochs=0, milestones=(0.5,))}
    run({name: table[name] for name in table if name != "pruner"} | whole, "b")
    assert files("a") == files("b")
    with pytest.raises(OptionError, match="densty does not exist; did you mean 'density'"):
        run({"densty": 0.1}, "out")


def test_the_best_epoch_is_not_selected_on_training_images():
    best = Plan(select="best")
    full = {"name": "cifar10", "train_on": "full"}
    with pytest.raises(OptionError, match=r"select = 'best'.*train_on = 'full'.*leave out one"):
        run(SMALL.replace(dataset=full, finetune=best), "out")
    assert not Path("out").exists()
    assert resolve(REGISTRY, SMALL.replace(dataset=full)).finetune.select == "last"
    assert resolve(REGISTRY, SMALL.replace(finetune=best)).finetune.select == "best"


@pytest.mark.parametrize("own", ["conv4", {"name": "conv4", "width": 4}])
def test_two_networks_are_a_contradiction(own):
    config = SMALL.replace(model=own)
    with pytest.raises(OptionError, match=r"model = 'lenet5' contradicts .* is 'conv4'"):
        run(config, "out", model="lenet5")
    assert not Path("out").exists()
    assert resolve(REGISTRY, config, "conv4") == resolve(REGISTRY, config)


def test_a_complete_recipe_is_used_as_it_is():
    recipe = REGISTRY.recipe("snip", parts={"allocation": "uniform"})
    config = RunConfig(recipe=recipe)
    assert resolve(REGISTRY, config).recipe == recipe
    assert resolve(REGISTRY, config_from_toml(config.to_toml())).recipe == recipe
    with pytest.raises(ValidationError, match="the recipe is that of pruner 'snip'"):
        RunConfig(pruner="random", recipe=recipe)


def test_the_file_in_a_runs_folder_is_a_configuration():
    run(SMALL, "a")
    config = load_config("a/config.toml")
    assert isinstance(config, RecordedConfig)
    run(config, "b")
    assert files("a") == files("b")


# --- presets -------------------------------------------------------------------------------------

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
                "finalize": "alive",
            },
            "search": {"epochs": 3, "batch_size": 16},
            "on_collapse": "warn",
            "seed": 4,
            "runtime": {"device": "cpu"},
            "run": {"check_seeds": 3},
        }
    }
"""


def test_a_preset_is_a_configuration(tmp_path, monkeypatch):
    Path("mine.py").write_text(MINE)
    registry = load_plugins(files=[Path("mine.py")], only=())
    run("mine/one", "a", registry=registry)
    preset = registry.preset("mine/one").thing
    assert isinstance(preset, RunConfig)
    run(preset.replace(run=preset.run.model_copy(update={"plugins": ["mine.py"]})), "b",
        registry=registry)  # fmt: skip
    shown = commands_in(tmp_path, monkeypatch)(
        "run", "--preset", "mine/one", "--plugin", "mine.py", "--out", "c"
    )
    assert shown.exit_code == 0, shown.stderr
    assert files("a")[:2] == files("c")[:2]
    assert files("b") == files("c"), "the command line uses all of it, also seed and device"
    recorded = tomllib.loads(Path("c/config.toml").read_text())
    assert (recorded["seed"], recorded["run"]["check_seeds"], recorded["finetune"]["epochs"]) == (
        4,
        3,
        3,
    )
    assert gemkit.load_preset("demo/quick").replace(seed=2).seed == 2


# --- files run no code ---------------------------------------------------------------------------

NET = """
from torch import nn

open("imported", "w").close()


def net(shape, classes):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 20), nn.ReLU(), nn.Linear(20, classes))
"""


def test_user_code_is_named_by_the_user_and_never_by_a_file(monkeypatch):
    Path("net_of_mine.py").write_text(NET)
    monkeypatch.syspath_prepend(".")
    own = "net_of_mine:net"
    for text in f'model = "{own}"\n', f'[model]\nname = "{own}"\n':
        with pytest.raises(UnknownNameError, match="unknown model 'net_of_mine'"):
            run(config_from_toml(text), "out")
    table = config_from_toml(f'[model]\ncustom = "{own}"\n')
    with pytest.raises(ModelError, match="a file alone runs no code"):
        run(table, "out")
    weights = {"name": "torchvision", "network": "resnet18", "pretrained": True}
    with pytest.raises(ModelError, match="fetches and reads no weights"):
        run(RunConfig(model=weights), "out")
    assert not Path("imported").exists()
    assert not Path("out").exists()
    typed = SMALL.replace(pruner="random", model=own, finetune=Plan(epochs=0))
    assert run(typed, "a").model["custom"] == own
    confirmed = typed.replace(model={"custom": own})
    assert run(confirmed, "b", model=own).load_ticket() is not None
    assert files("a") == files("b")
