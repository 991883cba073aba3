"""Tickets and controls are trained and evaluated in the same way; `gemkit check`."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from check_contexts import FINETUNE, REGISTRY, context_with
from cli_runs import TINY, Gemkit, answer, commands_in

from gemkit import SanityCheck
from gemkit.cli.progress import Warnings
from gemkit.core.errors import CheckError, CollapseError
from gemkit.core.events import Collapsed, EpochEnded, PhaseStarted
from gemkit.pruning import finetune as finetuning
from gemkit.pruning.search import search as find
from gemkit.sanity.context import context_of
from gemkit.sanity.trials import fair_control, pending, trials
from gemkit.sanity.verdicts import verdicts
from gemkit.tickets.ticket import Ticket

CHECKS = {name: REGISTRY.build("checks", name) for name in ("shuffle", "reinit")}


class Same(SanityCheck):
    """The ticket itself: a control that no ticket beats."""

    name = "same"

    def control(self, ticket, context):
        return ticket


# --- the same for all ----------------------------------------------------------------------------


def test_a_control_that_changes_nothing_differs_in_nothing():
    context = context_with("random")
    measured = list(trials(context.search(), {"same": Same()}, range(3), context))
    for seed in range(3):
        ticket, control = (trial for trial in measured if trial.seed == seed)
        assert control == ticket.model_copy(update={"check": "same"})
    [verdict] = verdicts(measured)
    assert (verdict.outcome, verdict.drop, verdict.equivalent) == ("fails", 0.0, True)


def test_ticket_and_controls_of_a_seed_get_one_plan_one_seed_and_one_network(monkeypatch):
    calls, searches = [], []
    real_finetune, real_search = finetuning.finetune, find

    def finetune(ticket, model, data, **how):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        calls.append((ticket, state, data, how["plan"], how["seed"]))
        return real_finetune(ticket, model, data, **how)

    def search(*what, **how):
        searches.append(how["seed"])
        return real_search(*what, **how)

    monkeypatch.setattr("gemkit.sanity.context.finetune", finetune)
    context = context_with("random", seed=5)
    given = context.search()
    monkeypatch.setattr("gemkit.sanity.context.search", search)
    measured = list(trials(given, CHECKS, (6, 5, 7), context))
    assert [(trial.seed, trial.check) for trial in measured] == [
        (seed, check) for seed in (6, 5, 7) for check in ("ticket", "shuffle", "reinit")
    ]
    assert searches == [6, 7], "the given ticket is used for its own seed"
    assert calls[3][0] == given
    for place, (ticket, state, data, plan, seed) in enumerate(calls):
        first = calls[place // 3 * 3]
        assert seed == measured[place].seed
        assert plan == FINETUNE
        assert data is context.data
        assert all((state[name] == first[1][name]).all() for name in state)
        assert (ticket == first[0]) == (place % 3 == 0)


def test_a_ticket_of_another_seed_is_what_a_run_with_that_seed_finds():
    context = context_with("gem_miner", seed=3)
    again = context_of(
        context.search(),
        data=context.data,
        build=context.build,
        registry=REGISTRY,
        runtime=context.runtime,
    )
    assert again.search() == context.search()
    other = replace(again, seed=4)
    assert other.search() == context_with("gem_miner", seed=4).search()
    assert other.search() != again.search()


def recorded_policies(monkeypatch, *modules):
    """Record the collapse policy of every search."""
    policies, real = [], find

    def search(*what, **how):
        policies.append(how["on_collapse"])
        return real(*what, **how)

    for module in modules:
        monkeypatch.setattr(f"{module}.search", search)
    return policies


def test_a_search_that_keeps_one_weight_of_every_layer_is_repeated_with_that_policy(monkeypatch):
    frugal = context_with("magnitude", density=0.012)
    bare = replace(frugal, on_collapse="warn").search()
    ticket = replace(frugal, on_collapse="keep-one").search()
    assert [layer.kept == 0 for layer in bare.layers] != [
        layer.kept == 0 for layer in ticket.layers
    ]
    context = context_of(
        ticket, data=frugal.data, build=frugal.build, registry=REGISTRY, runtime=frugal.runtime
    )
    assert context.search() == ticket
    policies = recorded_policies(monkeypatch, "gemkit.sanity.context")
    list(trials(ticket, {"invert": REGISTRY.build("checks", "invert")}, range(2), context))
    assert policies == ["keep-one"] * 3, "the control of each seed, and the ticket of the other"


def test_a_ticket_of_another_seed_that_collapses_is_measured_too(monkeypatch):
    context = context_with("magnitude", density=0.012)
    with pytest.raises(CollapseError):
        context.search()
    given = context_with("magnitude").search().with_info(seed=7)
    assert given.info.on_collapse == "error"
    [trial] = trials(given, {}, [0], context)
    assert trial.kept == 3


def test_a_run_checks_its_ticket_with_its_own_policy(gemkit, monkeypatch):
    policies = recorded_policies(monkeypatch, "gemkit.runs.runner", "gemkit.sanity.context")
    words = ("--on-collapse", "keep-one", "--check", "invert", "--check-seeds", "2")
    result = gemkit("run", "--pruner", "magnitude", *TINY, *words)
    assert result.exit_code == 0, result.stderr
    assert policies == ["keep-one"] * 4


def test_finished_trials_are_not_repeated():
    context = context_with("random")
    ticket = context.search()
    first = list(trials(ticket, CHECKS, range(2), context))
    assert list(trials(ticket, CHECKS, range(2), context, first)) == []
    left = pending(list(CHECKS), range(3), first[:-1])
    assert left == [("reinit", 1), ("ticket", 2), ("shuffle", 2), ("reinit", 2)]
    assert list(trials(ticket, CHECKS, range(2), context, first[:-1])) == first[-1:]


# --- controls that are not fair ------------------------------------------------------------------


class Unfair(SanityCheck):
    """Returns a control with this fault."""

    name = "unfair"
    fault: str = "nothing"

    def control(self, ticket, context):
        if self.fault == "nothing":
            return None
        if self.fault == "other":
            return context_with(network=wide_build).search()
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
    context = context_with("random")
    with pytest.raises(CheckError, match=words):
        fair_control(Unfair(fault=fault), context.search(), context)
    [_, unmade, shuffled] = trials(
        context.search(),
        {"mine": Unfair(fault=fault), "shuffle": CHECKS["shuffle"]},
        [0],
        context,
    )
    assert (unmade.check, unmade.seed) == ("mine", 0)
    assert words in unmade.reason
    assert shuffled.check == "shuffle", "the others continue"


def test_trained_tickets_and_tickets_without_a_plan_cannot_be_checked():
    context = context_with("random")
    ticket = context.search()
    rest = {
        "data": context.data,
        "build": context.build,
        "registry": REGISTRY,
        "runtime": context.runtime,
    }
    with pytest.raises(CheckError, match=r"ticket\.safetensors"):
        context_of(ticket.with_info(stage="finetuned"), **rest)
    with pytest.raises(CheckError, match="search again"):
        context_of(ticket.with_info(plan=None), **rest)


def levels_of(context, observers=()):
    levels = []
    find(
        context.recipe,
        context.network(),
        context.data,
        density=context.density,
        plan=context.plan,
        seed=context.seed,
        runtime=context.runtime,
        on_ticket=levels.append,
        observers=observers,
    )
    return levels


@pytest.mark.parametrize("pruner", ["imp_long_cold", "lr_rewinding"])
def test_a_level_that_a_search_to_its_density_finds_can_be_checked(pruner):
    context = context_with(pruner, density=0.5)
    rest = {
        "data": context.data,
        "build": context.build,
        "registry": REGISTRY,
        "runtime": context.runtime,
    }
    levels = levels_of(context)
    assert len(levels) == 4
    for level in levels:
        assert context_of(level, **rest).search() == level


def test_a_level_that_no_search_to_its_density_finds_is_refused():
    context = context_with("gradual_magnitude", options={"schedule.every": 1})
    rest = {
        "data": context.data,
        "build": context.build,
        "registry": REGISTRY,
        "runtime": context.runtime,
    }
    levels = levels_of(context)
    assert len(levels) > 1
    for level in levels:
        with pytest.raises(CheckError, match="of a run with --density"):
            context_of(level, **rest)
    assert context_of(context.search(), **rest).search() == context.search()


def test_a_level_of_a_recipe_that_fixes_another_density_is_refused():
    context = context_with("imp_long_cold", density=0.5)
    *others, last = levels_of(
        replace(context, recipe=context.recipe.model_copy(update={"density": 0.5}))
    )
    assert [level.info.partway for level in others] == [True] * 3
    assert not last.info.partway


def stopped_after(epoch):
    """Return an observer that stops training after this epoch."""
    views = []

    def stop(event):
        if isinstance(event, PhaseStarted):
            views.append(event.view)
        if isinstance(event, EpochEnded) and event.epoch == epoch:
            views[-1].stop("enough")

    return stop


@pytest.mark.parametrize("pruner", ["imp_long_cold", "gem_miner"])
def test_a_search_that_was_stopped_early_is_refused(pruner):
    """A search with another seed would train to the end."""
    context = context_with(pruner, density=0.5)
    ticket = replace(context, observers=[stopped_after(1)]).search()
    assert ticket.info.partway
    how = {"data": context.data, "build": context.build, "registry": REGISTRY}
    with pytest.raises(CheckError, match="that no observer stops"):
        context_of(ticket, **how, runtime=context.runtime)
    levels = levels_of(context, [stopped_after(1)])
    assert all(level.info.partway for level in levels)


def test_a_search_that_was_stopped_at_its_end_is_whole():
    context = context_with("gem_miner", density=0.5)
    last = context.plan.epochs
    assert not replace(context, observers=[stopped_after(last)]).search().info.partway


# --- the command line ----------------------------------------------------------------------------

PLUGIN = '''
from gemkit import SanityCheck, hookimpl


class Same(SanityCheck):
    """The ticket itself, for tests."""

    name = "same"

    def control(self, ticket, context):
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


def test_a_run_can_check_its_ticket(gemkit):
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


def test_a_check_prints_what_it_saves(gemkit, run):
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


def test_more_seeds_and_checks_are_added_to_those_saved(gemkit, run):
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


def test_checks_with_other_settings_are_not_mixed(gemkit, run):
    small = ("--checks", "shuffle", "--seeds", 1, "--device", "cpu")
    assert gemkit("check", run, *small).exit_code == 0
    before = (run / "checks.json").read_bytes()
    other = gemkit("check", run, *small, "--finetune-epochs", 1)
    assert other.exit_code == 2
    assert "other settings" in other.stderr
    assert other.stderr.count("  - ") == 1, "only differences are listed"
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


def test_a_positive_control_says_what_is_expected(gemkit, run):
    words = ("check", run, "--checks", "shuffle,permute", "--seeds", 3, "--margin", 0.3)
    shown = gemkit(*words, "--device", "cpu")
    assert shown.exit_code == 0, shown.stderr
    assert "passes (same)" in shown.stdout
    assert "a drop, except for permute: the same accuracy" in shown.stdout
    saved = json.loads((run / "checks.json").read_text())
    assert saved["checks"]["permute"]["expects"] == "same"
    assert "expects" not in saved["checks"]["shuffle"], "as in older files"
    found = {one["check"]: (one["outcome"], one["expects"]) for one in saved["verdicts"]}
    assert found["permute"] == ("passes", "same")
    assert found["shuffle"][1] == "drop"
    again = answer(
        gemkit("check", run, "--checks", "shuffle", *words[4:], "--device", "cpu", "--json")
    )
    assert again["verdicts"] == saved["verdicts"], "also where the check is not named again"


FUSSY = '''
from gemkit import SanityCheck, hookimpl
from gemkit.core.errors import FitError


class Fussy(SanityCheck):
    """Suits the first seed only, for tests."""

    name = "fussy"

    def control(self, ticket, context):
        if context.seed > 0:
            raise FitError("no shares for so few weights")
        return ticket


@hookimpl
def gemkit_sanity_checks():
    return [Fussy]
'''


def test_a_control_that_cannot_be_made_is_reported_and_the_others_continue(gemkit, run):
    Path("fussy.py").write_text(FUSSY)
    words = ("--plugin", "fussy.py", "--seeds", 2, "--device", "cpu")
    shown = gemkit("check", run, "--checks", "fussy,shuffle", *words)
    assert shown.exit_code == 0, shown.stderr
    assert "[5/6] seed 1, fussy: not made: no shares for so few weights" in shown.stderr
    assert "seed 1, fussy: not made: no shares for so few weights" in shown.stdout
    saved = json.loads((run / "checks.json").read_text())
    reported = [{"check": "fussy", "seed": 1, "reason": "no shares for so few weights"}]
    assert saved["unmade"] == reported
    assert [(one["check"], one["seeds"]) for one in saved["verdicts"]] == [
        ("fussy", 1),
        ("shuffle", 2),
    ]
    other = answer(gemkit("check", run, "--checks", "reinit", *words, "--json"))
    assert other["unmade"] == reported, "still so"
    Path("fussy.py").write_text(FUSSY.replace("> 0", "> 9"))
    corrected = answer(gemkit("check", run, "--checks", "fussy", *words, "--json"))
    assert corrected["unmade"] == []
    assert [one["seeds"] for one in corrected["verdicts"] if one["check"] == "fussy"] == [2]


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
def test_mistakes_are_reported_before_anything_is_computed(gemkit, run, words, message):
    result = gemkit("check", run, "--device", "cpu", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "seed 0, ticket" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_with_a_bad_check_does_not_start(gemkit):
    for name in ("shufle", "reinit:normal"):
        result = gemkit("run", "--pruner", "random", *TINY, "--check", name)
        assert result.exit_code == 2
        assert not Path("runs").exists()


def test_a_trained_ticket_is_refused_and_a_ticket_file_is_enough(gemkit, run):
    refused = gemkit("check", run / "finetuned.safetensors")
    assert refused.exit_code == 2
    assert "the weights of this ticket are trained" in refused.stderr
    Path("alone").mkdir()
    Ticket.load(run / "ticket.safetensors").save("alone/mine.safetensors")
    words = ("--checks", "shuffle", "--seeds", 1, "--finetune-epochs", 1, "--device", "cpu")
    alone = answer(gemkit("check", "alone/mine.safetensors", *words, "--json"))
    assert alone["file"] == "alone/checks.json"
    assert alone["setting"]["finetune"]["batch_size"] == 64


def test_a_warning_is_not_repeated(capsys):
    say = Warnings()
    for step, layers in enumerate([("a",), ("a",), ("a", "b"), ("a",)]):
        say(Collapsed(step, layers, f"collapse at step {step}"))
    said = [line.split()[-1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["0", "2", "3"]


def test_without_matplotlib_only_the_picture_is_missing(gemkit, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = gemkit("check", run, "--checks", "shuffle", "--seeds", 1, "--device", "cpu")
    assert result.exit_code == 0
    assert "pip install 'gemkit[plots]'" in result.stderr
    assert (run / "checks.json").exists()
    assert not (run / "checks.svg").exists()
