"""Plugins that are broken on purpose: each is caught, in one sentence that says what is wrong."""

import sys
from importlib import util

import pytest
import torch
from cli_runs import commands_in

from gemkit.core import selection
from gemkit.core.errors import PluginError
from gemkit.pruning.masked import MaskedNet
from gemkit.testing import contract, find_plugin, verdicts
from gemkit.training import device

HEADER = """
import torch
import torch.nn.functional as F
from pydantic import Field
from gemkit import (
    Allocation, Freeze, FreezeSchedule, MeasuredScores, Objective, Regularizer, Rounding, Structure,
    hookimpl,
)
"""
SCORES = '''

class Size(MeasuredScores):
    """The size of a weight."""

    name = "size"

    def importance(self, probe):
        return {name: weight.abs() for name, weight in probe.weights.items()}


@hookimpl
def gemkit_scores():
    return [Size]
'''


def bringing(hook, cls, body):
    """Write a plugin with one part, whose class has this body."""
    lines = "\n".join(f"    {line}".rstrip() for line in body.strip().splitlines())
    return (
        f"{HEADER}\n\nclass Mine({cls}):\n    'A part for tests.'\n\n    name = 'mine'\n\n{lines}\n"
        f"\n\n@hookimpl\ndef {hook}():\n    return [Mine]\n"
    )


def rounding(body):
    return bringing("gemkit_roundings", "Rounding", body)


def regularizer(body):
    return bringing("gemkit_regularizers", "Regularizer", body)


THRESHOLD = "needs_unit_interval = True\ndef masks(self, view, now):\n"
PENALTY = "def penalty(self, values, now):\n"
SQUARES = "    return sum((own**2).sum() for own in values.values())\n"

REFUSED = {
    "patches a method of the engine at import": (
        HEADER + "from gemkit.pruning.masked import MaskedNet\n"
        "old = MaskedNet.step\n"
        "MaskedNet.step = lambda self, optimizer: old(self, optimizer)\n" + SCORES,
        "it replaces gemkit.pruning.masked.MaskedNet.step; a plugin brings parts, and changes",
    ),
    "patches the selection at import": (
        HEADER + "from gemkit.core import selection\n"
        "selection.keep_top = selection.keep_top_unchecked\n" + SCORES,
        "it replaces gemkit.core.selection.keep_top; ",
    ),
    "patches torch.optim in a hook": (
        HEADER + SCORES + "\n\n@hookimpl\ndef gemkit_pruners():\n"
        "    torch.optim.SGD.step = lambda self, closure=None: None\n    return {}\n",
        "it replaces torch.optim.sgd.SGD.step; ",
    ),
    "changes a table of the engine": (
        HEADER + "from gemkit.training import device\ndevice._PRECISIONS['32'] = 9.0\n" + SCORES,
        "it replaces what is in gemkit.training.device._PRECISIONS; ",
    ),
    "gives an engine class a method": (
        HEADER + "Regularizer.init_state = lambda self, weights: {}\n" + SCORES,
        "it replaces gemkit.parts.regularizer.Regularizer.init_state; ",
    ),
    "sets torch's default dtype at import": (
        HEADER + "torch.set_default_dtype(torch.float64)\n" + SCORES,
        "it replaces torch's default dtype; a plugin brings parts, and changes nothing",
    ),
    "a name with a type": (
        HEADER + SCORES.replace("name = ", "name: str = "),
        "makes a field of name; set it without a type, as in name = '...'",
    ),
    "a constant of its own without a type": (
        HEADER + SCORES.replace('name = "size"', 'name = "size"\n    table = [1, 2]'),
        "A non-annotated attribute was detected: `table = [1, 2]`; give a field its type, and a "
        "constant the type ClassVar, at {}:",
    ),
    "a rounding with a state": (
        rounding(
            "def init_state(self, weights):\n    return {'x': torch.zeros(())}\n"
            + THRESHOLD
            + "    return {name: own > 0.5 for name, own in view.items()}"
        ),
        "defines init_state, but only regularizers and objectives have a state; ",
    ),
    "a penalty of version 1": (
        regularizer("def penalty(self, scores):\n    return torch.zeros(())"),
        "defines penalty(self, scores), which gemkit calls as penalty(self, values, now) "
        "(plugin API 2)",
    ),
    "a rounding of version 1": (
        rounding("def masks(self, view, alive, shares, rng):\n    return alive"),
        "defines masks(self, view, alive, shares, rng), which gemkit calls as "
        "masks(self, view, now) (plugin API 2)",
    ),
    "a plugin that says it is of version 1": (
        HEADER + "api_version = 1\n" + SCORES,
        "it is written for version 1 of the plugin API, and this gemkit has 2",
    ),
    "soft = 1": (
        rounding("soft = 1\ndef masks(self, view, now):\n    return view"),
        "sets soft = 1, which should be a valid boolean",
    ),
    "on = 'score'": (
        regularizer("on = 'score'\n" + PENALTY + SQUARES),
        "sets on = 'score', which should be 'scores' or 'gates'",
    ),
    "needs_density = 'yes'": (
        regularizer("needs_density = 'yes'\n" + PENALTY + SQUARES),
        "sets needs_density = 'yes', which should be a valid boolean",
    ),
    "a constant as a field": (
        regularizer("needs_density: bool = Field(default=True)\n" + PENALTY + SQUARES),
        "makes a field of needs_density; set it without a type, as in needs_density = ...",
    ),
    "a field for measured scores only": (
        bringing(
            "gemkit_scores",
            "MeasuredScores",
            "of: MeasuredScores = None\ndef importance(self, probe):\n    return {}",
        ),
        "has a field 'of' that holds a part; its type must be a kind, one of Scores, ",
    ),
    "a crash at import": (HEADER + "wieghts\n" + SCORES, "name 'wieghts' is not defined, at {}:9"),
    "a crash in a hook": (
        HEADER + "@hookimpl\ndef gemkit_scores():\n    return [Size]\n",
        "gemkit_scores failed with NameError: name 'Size' is not defined, at {}:11",
    ),
}

BROKEN = {
    "hidden state in an attribute": (
        regularizer(
            "def penalty(self, values, now):\n"
            "    object.__setattr__(self, 'steps', getattr(self, 'steps', 0) + 1)\n"
            "    return self.steps * sum((own**2).sum() for own in values.values())"
        ),
        "three steps from equal states gave two results; keep nothing in the part",
    ),
    "hidden state that changes no result": (
        rounding(
            THRESHOLD + "    object.__setattr__(self, 'steps', getattr(self, 'steps', 0) + 1)\n"
            "    return {name: own > 0.5 for name, own in view.items()}"
        ),
        "what the parts hold changed: attribute 'steps' of rounding 'mine'",
    ),
    "a counter in the module": (
        rounding(
            "needs_unit_interval = True\ndef masks(self, view, now):\n    CALLS.append(1)\n"
            "    return {name: own > len(CALLS) % 7 / 7 for name, own in view.items()}"
        )
        + "\n\nCALLS = []\n",
        "rounding twice gave two results; keep nothing in the part or its module",
    ),
    "a soft mask without soft = True": (
        rounding(THRESHOLD + "    return {name: own.sigmoid() for name, own in view.items()}"),
        "a rounding that returns gates between 0 and 1 sets soft = True, and defines hard",
    ),
    "gates above 1": (
        rounding(
            "soft = True\n"
            + THRESHOLD
            + "    return {name: own * 3 for name, own in view.items()}\n"
            "def hard(self, view, now):\n"
            "    return {name: own > 0.5 for name, own in view.items()}"
        ),
        "'layer0' holds numbers that are not from 0 to 1",
    ),
    "a rounding that keeps one too many": (
        rounding(
            "spends_budget = True\ndef masks(self, view, now):\n"
            "    masks = now.select(view)\n"
            "    first = next(iter(masks.values())).view(-1)\n"
            "    first[first.logical_not().nonzero()[:1]] = True\n"
            "    return masks"
        ),
        "('layer0',) keeps 7 instead of 6",
    ),
    "a rounding that changes the state": (
        rounding(
            THRESHOLD + "    [own.add_(1) for own in now.state.values()]\n"
            "    return {name: own > 0.5 for name, own in view.items()}"
        ),
        "its input changed: state of_the_regularizer",
    ),
    "a structure whose fold loses entries": (
        bringing(
            "gemkit_structures",
            "Structure",
            "def fold(self, weight):\n    return weight.reshape(1, len(weight), -1)[:, :, 1:]\n"
            "def fits(self, shape):\n    return len(shape) > 1 and min(shape) > 1",
        ),
        "12 entries become 8",
    ),
    "an objective that returns a vector": (
        bringing(
            "gemkit_objectives",
            "Objective",
            "def loss(self, outputs, batch, now):\n"
            "    return F.cross_entropy(outputs, batch[1], reduction='none')",
        ),
        "it has shape (4,); take the mean over the batch",
    ),
    "a penalty that changes the scores": (
        regularizer(PENALTY + "    [v.detach().mul_(0.9) for v in values.values()]\n" + SQUARES),
        "its input changed: score of layer0",
    ),
    "a penalty that reads the density unasked": (
        regularizer(PENALTY + "    return now.density * sum(v.sum() for v in values.values())"),
        "it raised ValueError: there are no gates here; a regularizer sets needs_density = True",
    ),
    "an allocation that misses its count": (
        bringing(
            "gemkit_allocations",
            "Allocation",
            "def keep(self, importance, alive, density):\n"
            "    return {(name,): int(density * mask.sum()) for name, mask in alive.items()}",
        ),
        "and the budget is ",
    ),
    "a schedule that regrows percents": (
        bringing(
            "gemkit_freeze_schedules",
            "FreezeSchedule",
            "trains = property(lambda self: True)\n"
            "def freezes(self, target, epochs, steps_per_epoch):\n"
            "    return [Freeze(0, target, 30.0)]",
        ),
        "it is [30.0]",
    ),
    "a patch of the engine while measuring": (
        bringing(
            "gemkit_scores",
            "MeasuredScores",
            "def importance(self, probe):\n"
            "    from gemkit.pruning.masked import MaskedNet\n"
            "    old = MaskedNet.step\n"
            "    MaskedNet.step = lambda self, optimizer: old(self, optimizer)\n"
            "    return {name: weight.abs() for name, weight in probe.weights.items()}",
        ),
        "it replaces gemkit.pruning.masked.MaskedNet.step; ",
    ),
    "a setting of torch that stays": (
        rounding(
            THRESHOLD + "    torch.use_deterministic_algorithms(True)\n"
            "    return {name: own > 0.5 for name, own in view.items()}"
        ),
        "it replaces torch's deterministic mode; ",
    ),
    "a state of numbers": (
        regularizer("def init_state(self, weights):\n    return {'x': 1.0}\n" + PENALTY + SQUARES),
        "'x' is a float",
    ),
}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a plugin file; its module is forgotten afterwards."""

    def write(code):
        file = tmp_path / "mine.py"
        file.write_text(code)
        return file

    yield write
    for name in [name for name in sys.modules if name.startswith("gemkit_file_mine")]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore:Field name")  # pydantic has seen it, too
@pytest.mark.parametrize("fault", REFUSED)
def test_a_plugin_is_refused_in_one_sentence(fault, written):
    code, sentence = REFUSED[fault]
    file = written(code)
    engine = _engine()
    things, refused = find_plugin(str(file))
    [reason] = refused
    assert not things
    assert reason.startswith(f"plugin 'mine' (file {file}): ")
    assert sentence.format(file) in reason
    assert "\n" not in reason
    assert engine == _engine()


def _engine():
    """Return what the broken plugins replace."""
    methods = (MaskedNet.step, selection.keep_top, torch.optim.SGD.step)
    return (*methods, device._PRECISIONS["32"], torch.get_default_dtype())


@pytest.mark.parametrize("fault", BROKEN)
def test_a_part_breaks_its_contract(fault, written):
    code, sentence = BROKEN[fault]
    things, refused = find_plugin(str(written(code)))
    assert not refused
    step = MaskedNet.step
    assert any(sentence in (one.problem or "") for one in verdicts(things))
    assert MaskedNet.step is step
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_command_line_reports_a_patch(written, tmp_path, monkeypatch):
    code, sentence = REFUSED["patches a method of the engine at import"]
    result = commands_in(tmp_path, monkeypatch)("check-plugin", written(code))
    assert result.exit_code == 1
    assert f"refused: plugin 'mine' (file {tmp_path / 'mine.py'}): {sentence}" in result.stdout
    assert result.stdout.endswith("It does not conform.\n")


def test_a_sound_plugin_replaces_nothing(written):
    assert find_plugin(str(written(HEADER + SCORES))).refused == []


def test_an_installed_plugin_that_patches_is_refused(written, tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "gemkit_mine-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "patching_mine.py").write_text(REFUSED["patches the selection at import"][0])
    (info / "METADATA").write_text("Name: gemkit-mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gemkit]\nmine = patching_mine\n")
    monkeypatch.syspath_prepend(site)
    whole = selection.keep_top
    try:
        assert find_plugin("gemkit-mine").refused == [
            "plugin 'gemkit-mine': it replaces gemkit.core.selection.keep_top; a plugin brings "
            "parts, and changes nothing of gemkit or torch: others who use them would get other "
            "results"
        ]
        assert selection.keep_top is whole
    finally:
        sys.modules.pop("patching_mine", None)


def test_a_module_that_has_patched_is_refused_by_its_contract(written, monkeypatch):
    """It was imported before the kit could look, so its own functions in gemkit give it away."""
    monkeypatch.setattr(MaskedNet, "step", MaskedNet.step)  # and put back afterwards
    file = written(REFUSED["patches a method of the engine at import"][0])
    spec = util.spec_from_file_location("patching_module", file)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(PluginError, match=r"replaces gemkit\.pruning\.masked\.MaskedNet\.step"):
        contract(module)


def test_a_crash_is_reported_once_with_its_file_and_line(written, tmp_path, monkeypatch):
    file = written(rounding(THRESHOLD + "    return wieghts"))
    result = commands_in(tmp_path, monkeypatch)("check-plugin", file)
    assert result.exit_code == 1
    line = 1 + file.read_text().splitlines().index("        return wieghts")
    crash = f"it raised NameError: name 'wieghts' is not defined, at {file}:{line}, in masks"
    assert result.stdout.count(crash) == 1
    assert result.stdout.count("it raised NameError, as above") > 2
    assert "Traceback" not in result.output


def test_an_assertion_of_the_plugin_is_a_crash_and_not_the_kits_own_words(written):
    file = written(rounding(THRESHOLD + "    assert view is None, 'not this view'"))
    found = [one.problem for one in verdicts(find_plugin(str(file)).things) if one.problem]
    assert f"it raised AssertionError: not this view, at {file}:" in found[0]


def test_fields_are_drawn_as_multiples(written):
    """Of any bounds and types: otherwise a sound part would be said to refuse its own fields."""
    code = bringing(
        "gemkit_scores",
        "MeasuredScores",
        "groups: int = Field(default=8, ge=3, lt=64, multiple_of=8, description='of eight')\n"
        "blocks: int = Field(default=0, multiple_of=7, description='without bounds')\n"
        "share: float = Field(default=0.5, gt=0, le=1, multiple_of=0.25, description='quarters')\n"
        "maybe: int | None = Field(default=None, le=-5, multiple_of=5, description='or none')\n"
        "def importance(self, probe):\n"
        "    return {name: weight.abs() for name, weight in probe.weights.items()}",
    )
    things, refused = find_plugin(str(written(code)))
    assert not refused
    [fields] = [
        one for one in verdicts(things) if one.clause == "it-round-trips-through-plain-data"
    ]
    assert fields.problem is None
