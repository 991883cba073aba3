"""Malicious tickets and run folders with valid hashes that ask for too much."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import tomli_w
import torch
from cli_runs import TINY, answer, commands_in
from forging import forge, header_alone

from gemkit.builtin.schedules import Exponential, Iterative
from gemkit.cli.command import echo
from gemkit.core import limits
from gemkit.core.errors import FitError, ModelError, OptionError, TicketError
from gemkit.core.limits import MAX_FREEZES, check_seed, max_file_bytes
from gemkit.core.tensor_file import open_tensors
from gemkit.core.text import escaped
from gemkit.models.from_timm import Timm
from gemkit.plugins.loader import load_plugins
from gemkit.runs import run as runner
from gemkit.runs.directory import RunDir
from gemkit.runs.metrics import Log
from gemkit.runs.resolved import resolve_recorded
from gemkit.runs.runner import resume_words
from gemkit.runs.specs import recorded_model
from gemkit.tickets import file as ticket_file
from gemkit.tickets.file import Content
from gemkit.tickets.ticket import Ticket

HOME = Path(__file__).parents[3] / "gemkit"
READERS = ("ticket verify", "ticket show", "eval", "finetune", "check", "compact", "bench")
BUILDERS = ("ticket verify", "eval", "finetune", "check", "compact", "bench")
"""Commands that read a ticket, and those that build something from it."""

NASTY = "x\x1b]0;owned\x07\x9b31m\u202e\nfile is sound"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

FAKE = {"name": "fake", "samples": 60}
HUGE_DATA = {**FAKE, "samples": 1_000_000, "size": 1024, "channels": 64}
HUGE_NET = {"name": "vgg16", "width": 1024}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small finished run, read-only."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("run")
        words = ("run", "--pruner", "random", *TINY, "-o", "dataset.size=32", "--out", "run")
        answer(commands_in(home, patch)(*words, "--json"))
    return home / "run"


@pytest.fixture(scope="module")
def ticket(run):
    return Ticket.load(run / "ticket.safetensors")


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def offline(monkeypatch):
    """Record every attempt to use the network or to load weights."""
    tries = []

    def refuse(*words, **_):
        tries.append(words)
        raise OSError("no network in this test")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(Timm, "fetch", refuse)
    monkeypatch.setattr("gemkit.models.library.read_weights", refuse)
    return tries


def forged(ticket, path="t.safetensors", **facts):
    """Write a ticket with other fields in its info."""
    forge(path, ticket, document={"info": {**ticket.info.model_dump(mode="json"), **facts}})


def refused(result, *words):
    """Check that a command ended with one message; return it."""
    assert result.exit_code == 2, result.output
    assert not RAW.search(result.output)
    assert len(re.findall("^gemkit: ", result.stderr, re.M)) == 1
    assert "\nfile is sound" not in result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr
    return result.stderr


def alone(*names):
    """Check that nothing was written beside these files."""
    assert sorted(path.name for path in Path().iterdir()) == sorted(names)


# --- the info of a ticket -------------------------------------------------------------------------

FACTS = {
    "seed of 2^64": ({"seed": 2**64}, "seed: "),
    "negative seed": ({"seed": -5}, "seed: "),
    "seed that torch would take": ({"seed": 2**32}, "seed: "),
    "epochs": ({"epochs": 2**63}, "epochs: "),
    "alive": ({"alive": 10**30}, "alive: "),
    "classes": ({"classes": 10**9}, "classes: "),
    "shape": ({"shape": [3, 2**20, 2**20]}, "an image may have"),
    "plan": ({"plan": {"epochs": 10**15}}, "plan.epochs: "),
    "milestones": ({"plan": {"milestones": [0.5] * 1001}}, "plan.milestones: "),
    "history": (
        {"history": [{"step": 0, "target": 1.0, "alive": 1, "kept": 1}] * (MAX_FREEZES + 1)},
        "history: ",
    ),
    "long pruner": ({"pruner": "x" * 513}, "pruner: "),
    "long version": ({"versions": {"gemkit": "1" * 513}}, "versions.gemkit: "),
    "an escape in a name": ({NASTY: 1}, r"x\x1b]0;owned\x07"),
    "many versions": ({"versions": {str(one): "1" for one in range(1001)}}, "versions: "),
    "long text": ({"model": {"name": "x" * 5000}}, "a text may have 4,096 characters, not 5,000"),
    "long key": ({"dataset": {"x" * 5000: 1}}, "a text may have"),
    "deep": ({"recipe": {"a": json.loads("[" * 30 + "]" * 30)}}, "20 levels deep"),
    "wide": ({"recipe": {"a": [[]] * 200_000}}, "400,"),
}


@pytest.mark.parametrize("case", FACTS)
def test_a_field_out_of_bounds_is_refused(case, ticket, gemkit):
    facts, why = FACTS[case]
    forged(ticket, **facts)
    refused(gemkit("ticket", "verify", "t.safetensors"), "t.safetensors is no", why)
    alone("t.safetensors")


@pytest.mark.parametrize("command", READERS)
def test_every_command_refuses_an_invalid_seed(command, ticket, gemkit):
    forged(ticket, seed=2**64)
    refused(gemkit(*command.split(), "t.safetensors"), "seed: ")
    alone("t.safetensors")


@pytest.mark.parametrize("command", BUILDERS)
def test_no_command_draws_268_terabytes_of_images(command, ticket, gemkit, little_memory):
    forged(ticket, dataset=HUGE_DATA)
    words = refused(gemkit(*command.split(), "t.safetensors"), "more than the limit of 268,435,456")
    assert f"{1_000_004 * 64 * 2**20:,} values" in words
    alone("t.safetensors")


def test_templates_of_classes_count_as_images(ticket, gemkit, little_memory):
    forged(ticket, dataset={**FAKE, "classes": 10_000, "size": 1024, "channels": 64})
    refused(gemkit("eval", "t.safetensors"), "more than the limit")


@pytest.mark.parametrize("command", BUILDERS)
def test_no_command_builds_a_network_much_larger_than_the_ticket(
    command, ticket, gemkit, little_memory
):
    forged(ticket, model=HUGE_NET)
    refused(gemkit(*command.split(), "t.safetensors"), "the network it names has many more")
    alone("t.safetensors")


def test_a_network_that_fits_no_memory_is_refused(ticket, gemkit, little_memory):
    forged(ticket, model={"name": "lenet300"}, shape=[1, 2**11, 2**11])
    refused(gemkit("ticket", "verify", "t.safetensors"), "the network it names has many more")


def test_a_ticket_that_does_not_fit_its_network_is_invalid(ticket, gemkit):
    forged(ticket, model={**ticket.info.model, "width": 5})
    refused(gemkit("ticket", "verify", "t.safetensors"), "t.safetensors is no", "of another shape")


def test_a_recipe_out_of_bounds_is_invalid(ticket, gemkit):
    schedule = {"name": "exponential", "rounds": 10**12}
    forged(ticket, recipe={**ticket.info.recipe, "schedule": schedule})
    refused(gemkit("ticket", "verify", "t.safetensors"), "schedule.rounds = 1000000000000")
    refused(gemkit("check", "t.safetensors"), "schedule.rounds")


@pytest.mark.parametrize("facts", [{}, {"model": None}, {"shape": None}, {"dataset": None}])
def test_a_valid_ticket_is_accepted(facts, ticket, gemkit):
    forged(ticket, **facts)
    shown = gemkit("ticket", "verify", "t.safetensors")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "t.safetensors is sound: random ticket" in shown.stdout


@pytest.mark.parametrize("what", ["model", "dataset"])
def test_parts_that_are_not_installed_are_noted(what, ticket, gemkit):
    forged(ticket, **{what: {"name": "elsewhere"}})
    shown = gemkit("ticket", "verify", "t.safetensors")
    assert shown.exit_code == 0
    assert f"note: not all of it was checked: unknown {what} 'elsewhere'" in shown.stderr


# --- the file itself ------------------------------------------------------------------------------


def described(ticket, state):
    """Return the metadata of a ticket file with this state and no mask."""
    document = {
        "format": 1,
        "mask": [],
        "state": state,
        "info": ticket.info.model_dump(mode="json"),
        "sha256": "0" * 64,
    }
    return {"gemkit": json.dumps(document)}


def one(name, shape, end):
    return f'"state/{name}":{{"dtype":"U8","shape":{shape},"data_offsets":[0,{end}]}}'


@pytest.mark.parametrize("command", READERS)
def test_a_sparse_file_of_41_gigabytes_is_not_read(command, ticket, gemkit, little_memory):
    size = 41 * 10**9
    header_alone("t.safetensors", one("w", [size], size), described(ticket, ["w"]), size)
    words = refused(gemkit(*command.split(), "t.safetensors"), " has 41,000,0")
    assert re.search(r"more than the limit of [\d,]+;.*set GEMKIT_MAX_GB=42", words)
    alone("t.safetensors")


def test_the_limit_of_bytes_can_be_raised(ticket, gemkit, monkeypatch):
    forged(ticket)
    monkeypatch.setenv("GEMKIT_MAX_GB", "0.00001")
    refused(gemkit("ticket", "verify", "t.safetensors"), "more than the limit of 10,000")
    monkeypatch.setenv("GEMKIT_MAX_GB", "0.1")
    assert gemkit("ticket", "verify", "t.safetensors").exit_code == 0
    for text in ("much", "inf", "nan"):
        monkeypatch.setenv("GEMKIT_MAX_GB", text)
        with pytest.raises(OptionError, match="is not a number of gigabytes"):
            max_file_bytes()


HEADERS = {
    "700,000 empty tensors": (
        lambda: ",".join(one(number, [0], 0) for number in range(700_000)),
        r"a header of \d\d,\d{3},\d{3} bytes",
    ),
    "70,000 empty tensors": (
        lambda: ",".join(one(number, [0], 0) for number in range(70_000)),
        "has 70,000 tensors, and at most 65,536",
    ),
    "a name of 40 MB": (lambda: one("x" * 40_000_000, [0], 0), "a header of 40,"),
    "a name of 600 letters": (lambda: one("x" * 600, [0], 0), "a tensor name of 606 characters"),
    "17 dimensions": (lambda: one("w", [1] * 17, 1), "more than 16 dimensions in 'state/w'"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_out_of_bounds_is_refused(case, ticket, gemkit):
    make, why = HEADERS[case]
    header_alone("t.safetensors", make(), described(ticket, []), int(case[:2] == "17"))
    assert re.search(why, refused(gemkit("ticket", "verify", "t.safetensors"), "is not read"))
    alone("t.safetensors")


def test_a_file_that_could_not_be_read_is_not_written(ticket, tmp_path):
    odd = {"x" * 600: torch.ones(2)}
    with pytest.raises(TicketError, match="a tensor name of 606 characters"):
        Ticket(ticket.mask, {**ticket.state, **odd}, ticket.info).save(tmp_path / "t.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_network_of_ten_thousand_weights_has_a_ticket(ticket, tmp_path):
    names = [f"stages.{n // 100}.blocks.{n % 100}.attention.{n}.weight" for n in range(10_000)]
    content = Content(
        dict.fromkeys(names, torch.ones(1, dtype=torch.bool)),
        {name: torch.ones(1) for name in names},
        ticket.info.model_dump(mode="json"),
    )
    ticket_file.write(content, tmp_path / "t.safetensors")
    with (tmp_path / "t.safetensors").open("rb") as plain, open_tensors(plain) as file:
        assert len(file.keys()) == 20_000


# --- weights from elsewhere -----------------------------------------------------------------------

NET = {"name": "timm", "network": "test_resnet"}


@pytest.fixture(scope="module")
def pretrained(ticket):
    """A ticket of a network that was built with pretrained weights."""
    network = load_plugins().build("models", NET).build((3, 32, 32), 4)
    state = network.state_dict()
    mask = {"fc.weight": torch.ones_like(state["fc.weight"], dtype=torch.bool)}
    model = {**NET, "pretrained": True}
    return Ticket(mask, state, ticket.info.model_copy(update={"model": model}))


@pytest.mark.parametrize("field", [{"pretrained": True}, {"weights": "/etc/hostname"}])
def test_a_ticket_alone_fetches_and_reads_no_weights(field, pretrained, gemkit, offline):
    forged(pretrained, model={**NET, **field})
    for command in ("ticket verify", "eval"):
        shown = gemkit(*command.split(), "t.safetensors")
        assert shown.exit_code == 0, shown.stderr
    words = refused(gemkit("check", "t.safetensors"), "a file alone fetches and reads no weights")
    assert "give --model timm:test_resnet" in words
    assert offline == []
    alone("t.safetensors")


@pytest.mark.parametrize("said", ["--model timm:test_resnet", "-o model.pretrained=true"])
def test_naming_the_network_again_loads_its_weights(said, pretrained, gemkit, offline):
    forged(pretrained)
    words = refused(
        gemkit("check", "t.safetensors", *said.split()), "cannot get pretrained weights"
    )
    assert "no network in this test" in words
    assert offline != []


def test_a_network_named_again_keeps_the_fields_in_the_file():
    registry, said = load_plugins(only=()), {"name": "conv4", "width": 5, "bias": True}
    part = recorded_model(registry, said, "conv4", {"bias": False})
    assert (part.width, part.bias) == (5, False)
    assert recorded_model(registry, said, "lenet5", {}).name == "lenet5"
    fetching = {**NET, "pretrained": True, "bn": "plain"}
    part = recorded_model(registry, fetching, "timm:test_resnet", {})
    assert (part.pretrained, part.bn) == (True, "plain")
    assert not recorded_model(registry, fetching, None, {"pretrained": False}).pretrained
    assert recorded_model(registry, fetching, None, {}, weights=False).pretrained
    with pytest.raises(ModelError, match="give --model timm:test_resnet"):
        recorded_model(registry, fetching, None, {})


# --- the folder of a run --------------------------------------------------------------------------


def with_config(run, change):
    """Copy a run and change its configuration."""
    shutil.copytree(run, "run")
    config = RunDir(Path("run")).config()
    Path("run/config.toml").write_text(tomli_w.dumps(config | change))
    return files_of("run")


def files_of(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


CONFIGS = {
    "seed of 2^64": ({"seed": 2**64}, "config.seed = "),
    "268 TB of images": ({"dataset": HUGE_DATA}, "more than the limit"),
    "four billion parameters": ({"model": HUGE_NET}, "a network of more than 1,000,000 parameters"),
    "weights of a hub": ({"model": {**NET, "pretrained": True}}, "fetches and reads no weights"),
    "weights of an unknown model": (
        {"model": {"name": NASTY, "pretrained": True}},
        r"--model x\x1b]0;",
    ),
    "weights in a file": ({"model": {**NET, "weights": "x"}}, "fetches and reads no weights"),
    "checks of so many seeds": ({"run": {"check_seeds": 10**12}}, "run.check_seeds = "),
    "endless epochs": ({"search": {"epochs": 10**12}}, "search.epochs = "),
    "escapes in a table": ({NASTY: 1}, r"config.x\x1b]0;owned"),
    "escapes": ({"model": {"name": NASTY}}, r"unknown model 'x\x1b"),
    "long names": ({"model": {"name": "x" * 1_000_000}}, "a text may have 4,096 characters"),
    "5 MB": ({"versions": {"x" * 5_000_000: ""}}, "larger than 4,194,304 bytes"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_folder_that_asks_for_too_much_is_not_resumed(
    case, run, gemkit, offline, monkeypatch, little_memory
):
    change, why = CONFIGS[case]
    monkeypatch.setattr(runner, "MAX_PARAMETERS", 10**6)
    before = with_config(run, change)
    refused(gemkit("resume", "run"), why)
    assert files_of("run") == before
    assert offline == []


def test_naming_a_large_network_again_builds_it(run, gemkit, monkeypatch):
    monkeypatch.setattr(runner, "MAX_PARAMETERS", 10)
    before = with_config(run, {})
    words = refused(gemkit("resume", "run"), "more than 10 parameters")
    assert "give --model conv4" in words
    assert files_of("run") == before
    assert gemkit("resume", "run", "--model", "conv4").exit_code == 0


def test_a_stopped_run_says_that_its_weights_have_to_be_given_again(run):
    file = Path(run, "config.toml")
    job = resolve_recorded(load_plugins(only=()), RunDir(run).config(), None, file)
    assert resume_words(Path("r"), job) == ["gemkit", "resume", "r"]
    net = Timm(network="test_resnet", pretrained=True)
    words = resume_words(Path("r"), type(job)(**{**vars(job), "model": net}))
    assert words[-2:] == ["--model", "timm:test_resnet"]


def test_runs_are_listed_whatever_their_files_say(run, gemkit):
    with_config(run, {"recipe": {"pruner": NASTY * 10_000}})
    line = json.dumps({"event": "epoch", "phase": NASTY, "epoch": 10**4000})
    Path("run/metrics.jsonl").write_text(line + "\n")
    Path("run/result.json").unlink()
    shown = gemkit("runs", ".")
    assert shown.exit_code == 0
    assert not RAW.search(shown.stdout)
    assert len(shown.stdout.splitlines()) < 12
    assert "\nfile is sound" not in shown.stdout


def test_a_checkpoint_that_is_too_large_is_named_and_kept(run, gemkit):
    shutil.copytree(run, "run")
    Path("run/result.json").unlink()
    Path("run/checkpoints").mkdir()
    for number in (1, 2):
        header_alone(f"run/checkpoints/{number}.safetensors", one("w", [1], 1), {}, 41 * 10**9)
    words = refused(gemkit("resume", "run"), "2.safetensors is not read", "GEMKIT_MAX_GB=42")
    assert "damaged" not in words
    assert len(list(Path("run/checkpoints").iterdir())) == 2


# --- text on the screen ---------------------------------------------------------------------------


def test_control_characters_are_escaped():
    assert escaped(NASTY) == r"x\x1b]0;owned\x07\x9b31m\u202e\nfile is sound"
    assert escaped("a\nb\tc", keep="\n\t") == "a\nb\tc"
    assert escaped("résumé 日本語 ± 🎉") == "résumé 日本語 ± 🎉"


@pytest.mark.parametrize("command", READERS)
def test_no_command_sends_a_tickets_escapes_to_the_terminal(command, ticket, gemkit):
    name = f"layer{NASTY}.weight"
    mask = {**ticket.mask, name: torch.ones(2, dtype=torch.bool)}
    odd = Ticket(mask, {**ticket.state, name: torch.ones(2)}, ticket.info)
    facts = {"pruner": NASTY, "versions": {NASTY: NASTY}, "dataset": {"name": NASTY}}
    forged(odd, "t.safetensors", **facts, model={**ticket.info.model, "name": NASTY})
    shown = gemkit(*command.split(), "t.safetensors")
    assert shown.exit_code == (0 if command.startswith("ticket") else 2)
    assert r"x\x1b]0;owned" in shown.output
    assert not RAW.search(shown.output)
    assert "\nfile is sound" not in shown.output


def test_json_and_notes_have_no_escapes_either(run, ticket, gemkit):
    forged(ticket, pruner=NASTY)
    shown = gemkit("ticket", "show", "t.safetensors", "--json")
    assert json.loads(shown.stdout)["pruner"] == NASTY
    assert not RAW.search(shown.stdout)
    shutil.copytree(run, "run")
    start = json.loads(Path("run/environment.json").read_text())[-1]
    Path("run/environment.json").write_text(json.dumps([{**start, "torch": NASTY}]))
    shown = gemkit("resume", "run")
    assert r"torch x\x1b]0;owned" in shown.stderr
    assert not RAW.search(shown.output)


def test_the_log_has_no_escapes(tmp_path):
    Log(tmp_path / "log.txt").say(f"error: {NASTY}")
    assert not RAW.search((tmp_path / "log.txt").read_text())


def test_commands_print_in_one_place_only():
    files = [*(HOME / "cli").glob("*.py")]
    assert [file.name for file in files if "click.echo(" in file.read_text()] == ["command.py"]


def test_a_very_long_message_is_cut(capsys):
    echo("x" * 1_000_000, err=True)
    assert len(capsys.readouterr().err) < 21_000


# --- the limits for users ------------------------------------------------------------------------


def test_the_documentation_states_the_limits():
    page = (HOME.parent / "docs" / "runs.md").read_text()
    section = page.partition("## Files from others")[2].partition("\n## ")[0]
    stated = ("SEED", "EPOCHS", "FREEZES", "IMAGE_VALUES", "TENSORS", "DIMENSIONS", "NAME_LENGTH")
    for name in (*stated, "PARAMETERS"):
        assert f"{getattr(limits, f'MAX_{name}'):,}" in section, name
    assert limits.MAX_HEADER_BYTES == 16 * 2**20


def test_a_search_refuses_what_its_ticket_could_not_record():
    for seed in (-1, 2**32):
        with pytest.raises(OptionError, match="is not between 0 and 4294967295"):
            check_seed(seed)
    with pytest.raises(FitError, match=r"would freeze 499,999 times.*raise schedule\.every"):
        Exponential().freezes(0.05, 1_000_000, 10)
    with pytest.raises(FitError, match=r"rounds to density 1e-300.*raise schedule\.fraction"):
        Iterative(fraction=0.01).freezes(1e-300, 10, 10)
    assert len(Iterative(fraction=0.01).freezes(1e-10, 10, 10)) == 2292
