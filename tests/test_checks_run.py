"""Tickets and controls are trained and measured alike, paired over seeds; `gemkit check`."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import TINY, Gemkit, answer, commands_in
from labs import REGISTRY, lab_of

from gemkit import SanityCheck, engine
from gemkit.checks import fair_control, trials, work
from gemkit.cli.reporting import Warnings
from gemkit.errors import CheckError, CollapseError
from gemkit.events import Collapsed
from gemkit.lab import lab_for
from gemkit.plan import Plan
from gemkit.report.verdicts import verdicts
from gemkit.ticket import Ticket

FINETUNE = engine.finetune_plan(Plan(epochs=2, batch_size=16))
CHECKS = {name: REGISTRY.build("checks", name) for name in ("shuffle", "reinit")}


class Same(SanityCheck):
    """The ticket itself: a control that nothing can beat."""

    name = "same"

    def control(self, ticket, lab):
        return ticket


# --- the same for all ----------------------------------------------------------------------------


def test_a_control_that_changes_nothing_differs_in_nothing():
    lab = lab_of("random")
    measured = list(trials(lab.search(), {"same": Same()}, range(3), lab, FINETUNE))
    for seed in range(3):
        ticket, control = (trial for trial in measured if trial.seed == seed)
        assert control == ticket.model_copy(update={"check": "same"})
    [verdict] = verdicts(measured)
    assert (verdict.outcome, verdict.drop, verdict.equivalent) == ("fails", 0.0, True)


def test_ticket_and_controls_of_a_seed_get_one_plan_one_seed_and_one_network(monkeypatch):
    calls, searches = [], []
    real_finetune, real_search = engine.finetune, engine.search

    def finetune(ticket, model, data, **how):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        calls.append((ticket, state, data, how["plan"], how["seed"]))
        return real_finetune(ticket, model, data, **how)

    def search(*what, **how):
        searches.append(how["seed"])
        return real_search(*what, **how)

    monkeypatch.setattr("gemkit.checks.finetune", finetune)
    lab = lab_of("random", seed=5)
    given = lab.search()
    monkeypatch.setattr(engine, "search", search)
    measured = list(trials(given, CHECKS, (6, 5, 7), lab, FINETUNE))
    assert [(trial.seed, trial.check) for trial in measured] == [
        (seed, check) for seed in (6, 5, 7) for check in ("ticket", "shuffle", "reinit")
    ]
    assert searches == [6, 7], "the given ticket stands for its own seed"
    assert calls[3][0] == given
    for place, (ticket, state, data, plan, seed) in enumerate(calls):
        first = calls[place // 3 * 3]
        assert seed == measured[place].seed
        assert plan == FINETUNE
        assert data is lab.data
        assert all((state[name] == first[1][name]).all() for name in state)
        assert (ticket == first[0]) == (place % 3 == 0)


def test_a_ticket_of_another_seed_is_what_a_run_with_that_seed_finds():
    lab = lab_of("gem_miner", seed=3)
    again = lab_for(
        lab.search(), data=lab.data, build=lab.build, registry=REGISTRY, runtime=lab.runtime
    )
    assert again.search() == lab.search()
    other = replace(again, seed=4)
    assert other.search() == lab_of("gem_miner", seed=4).search()
    assert other.search() != again.search()


def heard_policies(monkeypatch):
    """Listen to what every search is told to do about collapse."""
    policies, real = [], engine.search

    def search(*what, **how):
        policies.append(how["on_collapse"])
        return real(*what, **how)

    monkeypatch.setattr(engine, "search", search)
    return policies


def test_a_search_that_keeps_one_weight_of_every_layer_is_done_again_as_it_was(monkeypatch):
    frugal = lab_of("magnitude", density=0.012)
    bare = replace(frugal, on_collapse="warn").search()
    ticket = replace(frugal, on_collapse="keep-one").search()
    assert [layer.kept == 0 for layer in bare.layers] != [
        layer.kept == 0 for layer in ticket.layers
    ]
    lab = lab_for(
        ticket, data=frugal.data, build=frugal.build, registry=REGISTRY, runtime=frugal.runtime
    )
    assert lab.search() == ticket
    policies = heard_policies(monkeypatch)
    list(trials(ticket, {"invert": REGISTRY.build("checks", "invert")}, range(2), lab, FINETUNE))
    assert policies == ["keep-one"] * 3, "the control of each seed, and the ticket of the other"


def test_a_ticket_of_another_seed_that_collapses_is_measured_all_the_same(monkeypatch):
    lab = lab_of("magnitude", density=0.012)
    with pytest.raises(CollapseError):
        lab.search()
    given = lab_of("magnitude").search().with_info(seed=7)
    assert given.info.on_collapse == "error"
    [trial] = trials(given, {}, [0], lab, FINETUNE)
    assert trial.kept == 3


def test_a_run_checks_its_ticket_with_its_own_policy(gemkit, monkeypatch):
    policies = heard_policies(monkeypatch)
    words = ("--on-collapse", "keep-one", "--check", "invert", "--check-seeds", "2")
    result = gemkit("run", "--pruner", "magnitude", *TINY, *words)
    assert result.exit_code == 0, result.stderr
    assert policies == ["keep-one"] * 4


def test_what_is_done_is_not_done_again():
    lab = lab_of("random")
    ticket = lab.search()
    first = list(trials(ticket, CHECKS, range(2), lab, FINETUNE))
    assert list(trials(ticket, CHECKS, range(2), lab, FINETUNE, first)) == []
    left = work(list(CHECKS), range(3), first[:-1])
    assert left == [("reinit", 1), ("ticket", 2), ("shuffle", 2), ("reinit", 2)]
    assert list(trials(ticket, CHECKS, range(2), lab, FINETUNE, first[:-1])) == first[-1:]


# --- controls that are not fair ------------------------------------------------------------------


class Unfair(SanityCheck):
    """Returns what it is told to."""

    name = "unfair"
    fault: str = "nothing"

    def control(self, ticket, lab):
        if self.fault == "nothing":
            return None
        if self.fault == "other":
            return lab_of(network=wide_build).search()
        return replace(ticket, mask={name: mask & False for name, mask in ticket.mask.items()})


def wide_build():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(72, 3))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nothing", "must return a ticket, not something of type NoneType"),
        ("other", "masks for other weights"),
        ("empty", "keeps 0 weights and the ticket 86"),
    ],
)
def test_a_control_the_ticket_cannot_be_compared_with_is_refused(fault, words):
    lab = lab_of("random")
    with pytest.raises(CheckError, match=words):
        fair_control(Unfair(fault=fault), lab.search(), lab)
    [_, unmade, shuffled] = trials(
        lab.search(),
        {"mine": Unfair(fault=fault), "shuffle": CHECKS["shuffle"]},
        [0],
        lab,
        FINETUNE,
    )
    assert (unmade.check, unmade.seed) == ("mine", 0)
    assert words in unmade.reason
    assert shuffled.check == "shuffle", "the others go on"


def test_trained_tickets_and_tickets_without_a_plan_cannot_be_checked():
    lab = lab_of("random")
    ticket = lab.search()
    rest = {"data": lab.data, "build": lab.build, "registry": REGISTRY, "runtime": lab.runtime}
    with pytest.raises(CheckError, match=r"ticket\.safetensors"):
        lab_for(ticket.with_info(stage="finetuned"), **rest)
    with pytest.raises(CheckError, match="search again"):
        lab_for(ticket.with_info(plan=None), **rest)


def rungs_of(lab):
    rungs = []
    engine.search(
        lab.recipe,
        lab.network(),
        lab.data,
        density=lab.density,
        plan=lab.plan,
        seed=lab.seed,
        runtime=lab.runtime,
        on_ticket=rungs.append,
    )
    return rungs


@pytest.mark.parametrize("pruner", ["imp_long_cold", "lr_rewinding"])
def test_a_rung_that_a_search_to_its_density_finds_again_can_be_checked(pruner):
    lab = lab_of(pruner, density=0.5)
    rest = {"data": lab.data, "build": lab.build, "registry": REGISTRY, "runtime": lab.runtime}
    rungs = rungs_of(lab)
    assert len(rungs) == 4
    for rung in rungs:
        assert lab_for(rung, **rest).search() == rung


def test_a_rung_on_the_way_elsewhere_is_refused():
    lab = lab_of("gradual_magnitude", options={"schedule.every": 1})
    rest = {"data": lab.data, "build": lab.build, "registry": REGISTRY, "runtime": lab.runtime}
    rungs = rungs_of(lab)
    assert len(rungs) > 1
    for rung in rungs:
        with pytest.raises(CheckError, match="of a run with --density"):
            lab_for(rung, **rest)
    assert lab_for(lab.search(), **rest).search() == lab.search()


def test_a_rung_of_a_recipe_that_insists_on_another_density_is_refused():
    lab = lab_of("imp_long_cold", density=0.5)
    *others, last = rungs_of(replace(lab, recipe=lab.recipe.model_copy(update={"density": 0.5})))
    assert [rung.info.partway for rung in others] == [True] * 3
    assert not last.info.partway


# --- the command line ----------------------------------------------------------------------------

PLUGIN = '''
from gemkit import SanityCheck, hookimpl


class Same(SanityCheck):
    """The ticket itself, for tests."""

    name = "same"

    def control(self, ticket, lab):
        return ticket


@hookimpl
def gemkit_sanity_checks():
    return [Same]
'''


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    monkeypatch.setenv("COLUMNS", "100")
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def run(gemkit) -> Path:
    """Make a run and return its folder."""
    return Path(answer(gemkit("run", "--pruner", "random", *TINY, "--json"))["run_dir"])


def test_a_run_can_be_checked_in_one_go(gemkit):
    words = ("run", "--pruner", "random", *TINY, "--check", "shuffle", "--check", "reinit")
    result = answer(gemkit(*words, "--check-seeds", "3", "--json"))
    report = result["checks"]
    assert report["trials"][0]["after"] == result["accuracy_after"]
    assert report["trials"][0]["before"] == result["accuracy_before"]
    assert len(report["trials"]) == 9
    folder = Path(result["run_dir"])
    assert {"checks.json", "checks.svg", "checks.png"} < {file.name for file in folder.iterdir()}
    # The same as checking it afterwards: what the run measured is what a check measures.
    other = answer(
        gemkit(
            "check",
            folder,
            "--checks",
            "shuffle,reinit",
            "--seeds",
            3,
            "--out",
            "o",
            "--json",
            "--device",
            "cpu",
        )
    )
    assert other["trials"] == report["trials"]
    assert other["verdicts"] == report["verdicts"]


def test_a_check_tells_people_and_machines_the_same(gemkit, run):
    shown = gemkit("check", run, "--checks", "shuffle", "--seeds", 3, "--device", "cpu")
    assert shown.exit_code == 0, shown.stderr
    assert "[6/6] seed 2, shuffle" in shown.stderr
    for word in ("ticket", "shuffle", "95 % interval", "checks.svg", "1 % of the test images"):
        assert word in shown.stdout
    saved = json.loads((run / "checks.json").read_text())
    result = answer(
        gemkit("check", run, "--checks", "shuffle", "--seeds", 3, "--json", "--device", "cpu")
    )
    assert {key: result[key] for key in saved} == saved
    [verdict] = saved["verdicts"]
    assert verdict["check"] == "shuffle"
    assert verdict["seeds"] == 3
    assert verdict["outcome"] in ("passes", "fails", "undecided")


def test_more_seeds_and_checks_are_added_to_what_is_there(gemkit, run):
    small = ("--device", "cpu", "--json")
    first = answer(gemkit("check", run, "--checks", "shuffle", "--seeds", 1, *small))
    assert first["verdicts"][0]["outcome"] == "undecided"
    more = gemkit("check", run, "--checks", "shuffle,random_ticket:erk", "--seeds", 2, *small)
    assert "[4/4]" in more.stderr, "one known ticket and control are not measured again"
    second = answer(more)
    assert [trial for trial in second["trials"] if trial in first["trials"]] == first["trials"]
    assert [one["check"] for one in second["verdicts"]] == ["shuffle", "random_ticket:erk"]
    changed = gemkit(
        "check",
        run,
        "--checks",
        "reinit",
        "-o",
        "reinit.distribution=kaiming_normal",
        "--seeds",
        1,
        *small,
    )
    assert "[1/1]" in changed.stderr
    again = gemkit("check", run, "--checks", "reinit", "--seeds", 1, *small)
    assert "[1/1]" in again.stderr, "another way to reinit is another control"
    assert len(answer(again)["verdicts"]) == 3


def test_checks_made_another_way_are_not_mixed_up(gemkit, run):
    small = ("--checks", "shuffle", "--seeds", 1, "--device", "cpu")
    assert gemkit("check", run, *small).exit_code == 0
    before = (run / "checks.json").read_bytes()
    other = gemkit("check", run, *small, "--finetune-epochs", 1)
    assert other.exit_code == 2
    assert "made another way" in other.stderr
    assert other.stderr.count("  - ") == 1, "only what differs is told"
    assert "finetune.epochs is 3 there and 1 here" in other.stderr
    assert (run / "checks.json").read_bytes() == before
    assert gemkit("check", run, *small, "--finetune-epochs", 1, "--out", "new/place").exit_code == 0
    assert gemkit("check", run, *small, "--finetune-epochs", 1, "--force").exit_code == 0
    plan = json.loads((run / "checks.json").read_text())["setting"]["finetune"]
    assert (plan["epochs"], plan["batch_size"]) == (1, 16), "the rest is as in the run"
    (run / "checks.json").write_text('{"setting": {}, "trials": [{"seed": "x"}]}')
    damaged = gemkit("check", run, *small)
    assert damaged.exit_code == 2
    assert "cannot be read as checks; replace it with --force" in damaged.stderr


def test_a_plugin_can_bring_a_check(gemkit, run):
    Path("mine.py").write_text(PLUGIN)
    words = ("--checks", "same", "--plugin", "mine.py", "--seeds", 3, "--device", "cpu", "--json")
    report = answer(gemkit("check", run, *words))
    assert report["verdicts"][0]["outcome"] == "fails"
    assert report["checks"]["same"]["versions"]["mine.py"].startswith("sha256:")
    listed = gemkit("parts", "checks", "--plugin", "mine.py").stdout
    assert "same  [mine" in listed
    assert "random_ticket:ALLOCATION" in listed


FUSSY = '''
from gemkit import SanityCheck, hookimpl
from gemkit.errors import FitError


class Fussy(SanityCheck):
    """Suits the first seed only, for tests."""

    name = "fussy"

    def control(self, ticket, lab):
        if lab.seed > 0:
            raise FitError("no shares for so few weights")
        return ticket


@hookimpl
def gemkit_sanity_checks():
    return [Fussy]
'''


def test_a_control_that_cannot_be_made_is_noted_and_the_others_go_on(gemkit, run):
    Path("fussy.py").write_text(FUSSY)
    words = ("--plugin", "fussy.py", "--seeds", 2, "--device", "cpu")
    shown = gemkit("check", run, "--checks", "fussy,shuffle", *words)
    assert shown.exit_code == 0, shown.stderr
    assert "[5/6] seed 1, fussy: not made: no shares for so few weights" in shown.stderr
    assert "seed 1, fussy: not made: no shares for so few weights" in shown.stdout
    saved = json.loads((run / "checks.json").read_text())
    noted = [{"check": "fussy", "seed": 1, "reason": "no shares for so few weights"}]
    assert saved["unmade"] == noted
    assert [(one["check"], one["seeds"]) for one in saved["verdicts"]] == [
        ("fussy", 1),
        ("shuffle", 2),
    ]
    other = answer(gemkit("check", run, "--checks", "reinit", *words, "--json"))
    assert other["unmade"] == noted, "still so"
    Path("fussy.py").write_text(FUSSY.replace("> 0", "> 9"))
    mended = answer(gemkit("check", run, "--checks", "fussy", *words, "--json"))
    assert mended["unmade"] == []
    assert [one["seeds"] for one in mended["verdicts"] if one["check"] == "fussy"] == [2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--checks", "shufle"), "unknown check 'shufle'; did you mean 'shuffle'"),
        (("--checks", ","), "--checks names none"),
        (("--checks", "reinit:normal"), "check 'reinit:normal': unknown init 'normal'"),
        (("--checks", "random_ticket"), "check.allocation must be given"),
        (("-o", "shuffle.size=3"), "check.size does not exist"),
        (("-o", "erk.size=3"), "there is no kind 'erk'"),
        (("--finetune-epochs", "-1"), "finetune.epochs = -1"),
        (("--margin", "1.5"), "--margin"),
    ],
)
def test_mistakes_are_told_before_anything_is_computed(gemkit, run, words, message):
    result = gemkit("check", run, "--device", "cpu", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "seed 0, ticket" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_with_a_bad_check_does_not_begin(gemkit):
    for name in ("shufle", "reinit:normal"):
        result = gemkit("run", "--pruner", "random", *TINY, "--check", name)
        assert result.exit_code == 2
        assert not Path("runs").exists()


def test_a_trained_ticket_is_refused_and_a_ticket_may_stand_alone(gemkit, run):
    refused = gemkit("check", run / "finetuned.safetensors")
    assert refused.exit_code == 2
    assert "the weights of this ticket are trained" in refused.stderr
    Path("alone").mkdir()
    Ticket.load(run / "ticket.safetensors").save("alone/mine.safetensors")
    words = ("--checks", "shuffle", "--seeds", 1, "--finetune-epochs", 1, "--device", "cpu")
    alone = answer(gemkit("check", "alone/mine.safetensors", *words, "--json"))
    assert alone["file"] == "alone/checks.json"
    assert alone["setting"]["finetune"]["batch_size"] == 64


def test_a_warning_is_not_said_twice_in_a_row(capsys):
    say = Warnings()
    for step, layers in enumerate([("a",), ("a",), ("a", "b"), ("a",)]):
        say(Collapsed(step, layers, f"collapse at step {step}"))
    said = [line.split()[-1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["0", "2", "3"]


def test_without_matplotlib_everything_but_the_picture_is_there(gemkit, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = gemkit("check", run, "--checks", "shuffle", "--seeds", 1, "--device", "cpu")
    assert result.exit_code == 0
    assert "pip install 'gemkit[plots]'" in result.stderr
    assert (run / "checks.json").exists()
    assert not (run / "checks.svg").exists()
