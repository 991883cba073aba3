"""Plugins are loaded through the hooks; a fault in one is reported by name."""

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from gemkit.core.errors import OptionError, PluginError, UnknownNameError
from gemkit.parts.regularizer import Regularizer
from gemkit.plugins.loader import BUILT_IN, KINDS, load_plugins
from gemkit.plugins.markers import hookimpl
from gemkit.plugins.registry import Registry

HEADER = """
    from collections.abc import Callable
    from typing import Any
    from pydantic import Field
    import torch
    from gemkit import hookimpl
    from gemkit import Part, Regularizer, Scores
"""

PENALTY = """
    class {cls}(Regularizer):
        "A penalty for tests."
        name = "{name}"
        weight: float = Field(default=1.0, ge=0, le=5, description="how much")
        rounds: int = Field(default=1, ge=1, description="how often")
        def penalty(self, values, now):
            return torch.zeros(())
"""

HOOK = """
    @hookimpl
    def {hook}():
        return {value}
"""


def plugin_code(*blocks: str) -> str:
    return "\n".join(dedent(block) for block in (HEADER, *blocks))


def penalty(name: str, cls: str = "Penalty") -> str:
    return PENALTY.format(name=name, cls=cls)


def field(line: str) -> str:
    return penalty("huber").replace("rounds: int", f"{line}\n        rounds: int", 1)


def hook(value: str, name: str = "gemkit_regularizers") -> str:
    return HOOK.format(hook=name, value=value)


GOOD = plugin_code(
    penalty("huber"),
    hook("[Penalty]"),
    hook("{'huber_miner': {'scores': 'uniform', 'regularizer': 'huber'}}", "gemkit_pruners"),
)

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch):
    """Remove every module that a test imports, and allow all plugins."""
    monkeypatch.delenv("GEMKIT_PLUGINS", raising=False)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("plug_", "gemkit_file_")):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch) -> Install:
    """Return a function that installs a distribution `gemkit-<name>` with one plugin."""

    def installed(name: str, code: str, *, plugin: str | None = None, point: str = "") -> None:
        site = tmp_path / f"site-{name}"
        info = site / f"gemkit_{name}-1.5.dist-info"
        info.mkdir(parents=True)
        (site / f"plug_{name}.py").write_text(code)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: gemkit-{name}\nVersion: 1.5\n"
        )
        entry = f"[gemkit]\n{plugin or name} = {point or f'plug_{name}'}\n"
        (info / "entry_points.txt").write_text(entry)
        monkeypatch.syspath_prepend(site)

    return installed


def only_refusal(registry: Registry) -> str:
    [refusal] = registry.refused
    return refusal.reason


# --- what is there ---------------------------------------------------------------------------


def test_built_in_parts_use_the_hooks_and_name_their_origin():
    registry = load_plugins()
    entry = registry.part("roundings", "threshold")
    assert entry.thing.name == "threshold"
    assert entry.plugin in BUILT_IN
    assert entry.distribution == "built into gemkit"
    assert registry.refused == ()
    assert registry.contested == {}


def test_an_installed_plugin_registers_parts_and_pruners(install):
    install("huber", GOOD)
    registry = load_plugins()
    entry = registry.part("regularizers", "huber")
    assert (entry.plugin, entry.distribution) == ("huber", "gemkit-huber 1.5")
    assert registry.pruner("huber_miner").distribution == "gemkit-huber 1.5"
    recipe = registry.recipe("huber_miner")
    assert recipe.pruner == "huber_miner"
    assert recipe.regularizer.name == "huber"
    assert recipe.rounding.name == "open"  # the default of an omitted role


def test_an_entry_point_may_name_an_object(install):
    install(
        "object",
        plugin_code(
            penalty("huber"),
            """
            class Plugin:
                @hookimpl
                def gemkit_regularizers(self):
                    return [Penalty]
            plugin = Plugin()
            """,
        ),
        point="plug_object:plugin",
    )
    assert load_plugins().part("regularizers", "huber").plugin == "object"


def test_a_hook_of_another_gemkit_may_be_marked_optional(install):
    optional = "@hookimpl(optionalhook=True)\ndef gemkit_optimizers():\n    return []\n"
    install("huber", GOOD + optional)
    assert load_plugins().part("regularizers", "huber").plugin == "huber"


def test_two_loads_share_nothing(install):
    before = load_plugins()
    install("huber", GOOD)
    after = load_plugins()
    assert "huber" not in before.parts["regularizers"]
    assert "huber" in after.parts["regularizers"]


def test_every_part_hook_has_a_kind():
    import gemkit.plugins.hookspecs

    hooks = {name for name in vars(gemkit.plugins.hookspecs) if name.startswith("gemkit_")}
    assert hooks == {kind.hook for kind in KINDS.values()} | {"gemkit_pruners", "gemkit_presets"}


# --- faults ----------------------------------------------------------------------------------

FAULTS = {
    "import fails": ("import no_such_module", ["No module named 'no_such_module'"]),
    "syntax": ("def broken(:", ["SyntaxError"]),
    "exits": ("import sys; sys.exit('bye')", ["SystemExit", "bye"]),
    "no hooks": ("x = 1", ["has no hooks", "gemkit_scores"]),
    "unknown hook": (
        plugin_code(hook("[]", "gemkit_models"), hook("[]", "gemkit_score")),
        ["no hook 'gemkit_score'", "did you mean 'gemkit_scores'"],
    ),
    "unmarked hook": (
        plugin_code("def gemkit_scores():\n    return []"),
        ["gemkit_scores is not marked", "@gemkit.hookimpl"],
    ),
    "wrong arguments": (
        plugin_code("@hookimpl\ndef gemkit_scores(model):\n    return []"),
        ["gemkit_scores(model)", "{'model'}"],
    ),
    "hook raises": (
        plugin_code("@hookimpl\ndef gemkit_scores():\n    return 1 / 0"),
        ["gemkit_scores failed", "ZeroDivisionError"],
    ),
    "hook exits": (
        plugin_code("@hookimpl\ndef gemkit_scores():\n    raise SystemExit(3)"),
        ["gemkit_scores failed", "SystemExit"],
    ),
    "forgotten return": (
        plugin_code("@hookimpl\ndef gemkit_scores():\n    []"),
        ["gemkit_scores returned something of type NoneType", "list of Scores classes"],
    ),
    "not a list": (
        plugin_code(penalty("huber"), hook("Penalty")),
        ["gemkit_regularizers returned the class Penalty", "a list of Regularizer classes"],
    ),
    "wrapper": (
        plugin_code("@hookimpl(wrapper=True)\ndef gemkit_scores():\n    return (yield)"),
        ["gemkit_scores returned something of type generator"],
    ),
    "not a class": (
        plugin_code(penalty("huber"), hook("[Penalty()]")),
        ["lists something of type Penalty", "gemkit.Regularizer"],
    ),
    "wrong kind": (
        plugin_code(penalty("huber"), hook("[Penalty]", "gemkit_scores")),
        ["gemkit_scores lists the class Penalty", "gemkit.Scores"],
    ),
    "abstract": (
        plugin_code(
            "class Half(Regularizer):\n    'Half done.'\n    name = 'half'", hook("[Half]")
        ),
        ["Half", "is abstract", "penalty"],
    ),
    "no name": (
        plugin_code(penalty("huber").replace('name = "huber"', ""), hook("[Penalty]")),
        ["Penalty", "has no name"],
    ),
    "name as a field": (
        plugin_code(penalty("huber").replace("name =", "name: str ="), hook("[Penalty]")),
        ["Penalty", "makes a field of name"],
    ),
    "ill-formed name": (
        plugin_code(penalty("Huber-Loss"), hook("[Penalty]")),
        ["Penalty", "is named 'Huber-Loss'", "lower-case letters"],
    ),
    "no docstring of its own": (
        plugin_code(penalty("huber").replace('"A penalty for tests."', ""), hook("[Penalty]")),
        ["Penalty", "has no docstring"],
    ),
    "inherited docstring": (
        plugin_code(
            penalty("huber"),
            "class Other(Penalty):\n    name = 'other'",
            hook("[Penalty, Other]"),
        ),
        ["Other", "has no docstring"],
    ),
    "argument is no field": (
        plugin_code(
            penalty("huber").replace('name = "huber"', 'name = "huber"; argument = "size"'),
            hook("[Penalty]"),
        ),
        ["Penalty", "'size'", "not one of its fields"],
    ),
    "None that cannot be written": (
        plugin_code(
            penalty("huber").replace("rounds: int", "rounds: int | None"), hook("[Penalty]")
        ),
        ["Penalty", "'rounds'", "None must be its default"],
    ),
    "mutable default": (
        plugin_code(field("sizes: list[int] = [1, 2]"), hook("[Penalty]")),
        ["gemkit_regularizers lists Penalty", "'sizes'", "a list", "tuple"],
    ),
    "mutable default of a factory": (
        plugin_code(
            field("sizes: dict[str, int] = Field(default_factory=dict)"), hook("[Penalty]")
        ),
        ["Penalty", "'sizes'", "a dict"],
    ),
    "default that is not JSON": (
        plugin_code(field("odd: Any = Field(default=torch.zeros(2, 2))"), hook("[Penalty]")),
        ["Penalty", "'odd'", "cannot be written as JSON"],
    ),
    "default that is not a number": (
        plugin_code(field("odd: float = float('nan')"), hook("[Penalty]")),
        ["Penalty", "'odd'", "nan", "cannot be written as JSON"],
    ),
    "default out of its own bounds": (
        plugin_code(field("odd: int = Field(default=9, le=5, description='')"), hook("[Penalty]")),
        ["Penalty", "refuses the default of 'odd'", "less than or equal to 5"],
    ),
    "default of another type": (
        plugin_code(field("odd: int = 'nine'"), hook("[Penalty]")),
        ["Penalty", "refuses the default of 'odd'", "valid integer"],
    ),
    "default factory that fails": (
        plugin_code(field("odd: int = Field(default_factory=lambda: 1 // 0)"), hook("[Penalty]")),
        ["Penalty", "'odd'", "default_factory failed with ZeroDivisionError"],
    ),
    "type that JSON cannot express": (
        plugin_code(field("odd: Callable[[int], int]"), hook("[Penalty]")),
        ["Penalty", "'odd'", "JSON cannot express"],
    ),
    "type that does not exist": (
        plugin_code(field("odd: 'Nowhere' = 1"), hook("[Penalty]")),
        ["Penalty", "'Nowhere' is not defined"],
    ),
    "description that is no text": (
        plugin_code(field("odd: int = Field(default=1, description=5)"), hook("[Penalty]")),
        ["Penalty", "'odd'", "description is not a string"],
    ),
    "two classes of one name": (
        plugin_code(penalty("huber"), penalty("huber", cls="Second"), hook("[Penalty, Second]")),
        ["Penalty and Second", "'huber'"],
    ),
    "presets not a dict": (
        plugin_code(hook("['mine']", "gemkit_presets")),
        ["gemkit_presets returned something of type list"],
    ),
    "preset name": (
        plugin_code(hook("{'mine': {}}", "gemkit_presets")),
        ["gemkit_presets names a preset 'mine'", "my_plugin/my-preset"],
    ),
    "preset key": (
        plugin_code(
            hook(
                "{'my/one': {'help': 'x', 'pruner': 'dense', 'density': 1, 'model': 'conv4',"
                " 'dataset': 'digits', 'epoch': 3}}",
                "gemkit_presets",
            )
        ),
        ["gemkit_presets gives an invalid preset", "preset 'my/one'", "epoch does not exist"],
    ),
    "preset name taken": (
        plugin_code(
            hook(
                "{'demo/dense': {'help': 'x', 'pruner': 'dense', 'density': 1, 'model': 'conv4',"
                " 'dataset': 'digits'}}",
                "gemkit_presets",
            )
        ),
        ["gemkit_presets registers the name 'demo/dense'", "gemkit.presets", "built into gemkit"],
    ),
    "pruners not a dict": (
        plugin_code(hook("['mine']", "gemkit_pruners")),
        ["gemkit_pruners returned something of type list"],
    ),
    "recipe not a dict": (
        plugin_code(hook("{'mine': 'magnitude'}", "gemkit_pruners")),
        ["gemkit_pruners gives something of type str for 'mine'"],
    ),
    "ill-formed pruner": (
        plugin_code(hook("{'My Pruner': {}}", "gemkit_pruners")),
        ["'My Pruner'", "lower-case letters"],
    ),
    "unknown recipe key": (
        plugin_code(hook("{'mine': {'scorse': 'magnitude'}}", "gemkit_pruners")),
        ["'mine'", "'scorse'", "did you mean 'scores'"],
    ),
    "help that is no text": (
        plugin_code(hook("{'mine': {'help': 5}}", "gemkit_pruners")),
        ["gemkit_pruners", "'mine'", "type int as help"],
    ),
    "built-in part": (
        plugin_code(penalty("l2"), hook("[Penalty]")),
        ["gemkit_regularizers", "'l2'", "gemkit.builtin.regularizers", "built into gemkit"],
    ),
    "built-in pruner": (
        plugin_code(hook("{'gem_miner': {}}", "gemkit_pruners")),
        ["gemkit_pruners", "'gem_miner'", "gemkit.methods.gem_miner", "built into gemkit"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plugin_is_refused_by_name_and_others_stay_usable(fault, install):
    code, words = FAULTS[fault]
    install("bad", code)
    install("huber", GOOD.replace("huber", "good"))
    registry = load_plugins()
    reason = only_refusal(registry)
    for word in [*words, "plugin 'bad'", "gemkit-bad 1.5", "GEMKIT_PLUGINS"]:
        assert word in reason
    assert "\n" not in reason
    assert registry.recipe("gem_miner").regularizer.name == "l2"
    assert registry.recipe("good_miner").regularizer.name == "good"
    with pytest.raises(UnknownNameError, match="plugin 'bad'"):
        registry.recipe("mine")


def test_a_plugin_is_refused_as_a_whole(install):
    install("bad", GOOD + plugin_code(hook("[int]", "gemkit_scores")))
    registry = load_plugins()
    assert "gemkit_scores lists the class int" in only_refusal(registry)
    assert "huber" not in registry.parts["regularizers"]
    assert "huber_miner" not in registry.pruners


@pytest.mark.parametrize("point", ["plug_bad:missing", "plug_bad:not an attribute", "no.module"])
def test_an_entry_point_that_leads_nowhere_is_refused(point, install):
    install("bad", GOOD, point=point)
    registry = load_plugins()
    assert "cannot be imported" in only_refusal(registry)
    assert registry.recipe("gem_miner").pruner == "gem_miner"


def test_damaged_metadata_does_not_hide_the_other_plugins(install, tmp_path):
    install("huber", GOOD)
    install("bad", plugin_code(hook("[]")))
    (tmp_path / "site-bad" / "gemkit_bad-1.5.dist-info" / "METADATA").unlink()
    assert load_plugins().part("regularizers", "huber").plugin == "huber"


def test_a_fault_in_a_built_in_module_is_raised(monkeypatch, install):
    install("own", "x = 1")
    monkeypatch.setattr("gemkit.plugins.loader.BUILT_IN", (*BUILT_IN, "plug_own"))
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    with pytest.raises(PluginError, match=r"'plug_own' \(built into gemkit\).*bug in gemkit"):
        load_plugins()


def test_two_built_in_modules_may_not_claim_one_name(monkeypatch, install):
    install("own", plugin_code(penalty("l2"), hook("[Penalty]")))
    monkeypatch.setattr("gemkit.plugins.loader.BUILT_IN", (*BUILT_IN, "plug_own"))
    with pytest.raises(PluginError, match=r"plug_own.*'l2'.*builtin\.regularizers"):
        load_plugins(only=())


# --- which plugins ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "loaded"),
    [
        (None, {"one", "two"}),
        ("", set()),
        ("two", {"two"}),
        (" one , two,", {"one", "two"}),
    ],
)
def test_the_environment_chooses_plugins(value, loaded, install, monkeypatch):
    for name in ("one", "two"):
        install(name, plugin_code(penalty(name), hook("[Penalty]")))
    if value is not None:
        monkeypatch.setenv("GEMKIT_PLUGINS", value)
    registry = load_plugins()
    assert {"one", "two"} & registry.parts["regularizers"].keys() == loaded
    assert "l2" in registry.parts["regularizers"]


def test_a_plugin_that_is_not_selected_is_not_imported(install, monkeypatch):
    install("bad", "raise RuntimeError('imported')")
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    assert load_plugins().refused == ()
    assert "plug_bad" not in sys.modules


def test_only_overrides_the_environment(install, monkeypatch):
    install("huber", GOOD)
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    assert "huber" in load_plugins(only=["huber"]).parts["regularizers"]


def test_selecting_a_plugin_that_is_not_installed_is_an_error(install, monkeypatch):
    install("huber", GOOD)
    monkeypatch.setenv("GEMKIT_PLUGINS", "hubert")
    with pytest.raises(PluginError, match=r"'hubert'.*not installed; did you mean 'huber'"):
        load_plugins()


# --- one name, two plugins -------------------------------------------------------------------


def test_a_preset_of_two_plugins_belongs_to_neither(install):
    data = "{'help': 'x', 'pruner': 'dense', 'density': 1, 'model': 'conv4', 'dataset': 'digits'}"
    for name in ("one", "two"):
        install(name, plugin_code(hook(f"{{'my/preset': {data}}}", "gemkit_presets")))
    registry = load_plugins()
    assert "my/preset" not in registry.presets
    with pytest.raises(PluginError, match=r"'my/preset' is claimed through gemkit_presets by"):
        registry.preset("my/preset")


@pytest.fixture
def contested(install) -> Registry:
    for name in ("one", "two"):
        install(
            name,
            plugin_code(
                penalty("huber"),
                penalty(name, cls="Own"),
                hook("[Penalty, Own]"),
                hook("{'mine': {'regularizer': 'huber'}}", "gemkit_pruners"),
            ),
        )
    return load_plugins()


def test_a_contested_name_raises_when_used_and_names_both(contested):
    with pytest.raises(PluginError) as caught:
        contested.build("regularizers", "huber")
    for word in (
        *("'huber'", "gemkit_regularizers", "uninstall", "GEMKIT_PLUGINS=one"),
        *("plugin 'one' (gemkit-one 1.5)", "plugin 'two' (gemkit-two 1.5)"),
    ):
        assert word in str(caught.value)
    with pytest.raises(PluginError, match=r"'mine'.*gemkit_pruners"):
        contested.recipe("mine")
    with pytest.raises(PluginError, match=r"pruner 'gem_miner': 'huber' is claimed"):
        contested.recipe("gem_miner", parts={"regularizer": "huber"})


def test_what_is_not_contested_stays_usable(contested):
    assert contested.refused == ()
    assert contested.build("regularizers", "one").name == "one"
    assert contested.build("regularizers", "two").name == "two"
    assert contested.recipe("gem_miner").pruner == "gem_miner"
    assert "huber" not in contested.parts["regularizers"]
    assert "mine" not in contested.pruners


def test_selecting_one_plugin_resolves_the_conflict(contested):
    assert contested.contested
    registry = load_plugins(only=["two"])
    assert registry.part("regularizers", "huber").distribution == "gemkit-two 1.5"


# --- files -----------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def test_a_file_is_a_plugin_without_being_on_the_search_path(file):
    path = list(sys.path)
    registry = load_plugins(files=[file])
    assert sys.path == path
    entry = registry.part("regularizers", "huber")
    assert (entry.plugin, entry.distribution) == ("mine", f"file {file}")


def test_a_file_may_postpone_its_annotations(file):
    file.write_text("from __future__ import annotations\n" + GOOD)
    part = load_plugins(files=[file]).build("regularizers", "huber", {"rounds": 3})
    assert part.rounds == 3


def test_two_files_of_one_name_are_two_modules(file, tmp_path):
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text(GOOD.replace("huber", "hinge"))
    registry = load_plugins(files=[file, other])
    first, second = (registry.part("regularizers", name).thing for name in ("huber", "hinge"))
    assert first.__module__ != second.__module__


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_is_an_error_at_once(fault, file):
    code, words = FAULTS[fault]
    file.write_text(code)
    with pytest.raises(PluginError) as caught:
        load_plugins(files=[file])
    for word in [*words, "plugin 'mine'", f"file {file}"]:
        assert word in str(caught.value)


def test_a_file_that_fails_leaves_no_module(file):
    file.write_text("raise ValueError")
    before = set(sys.modules)
    with pytest.raises(PluginError):
        load_plugins(files=[file])
    assert set(sys.modules) <= before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.py", r"No such file .*Correct the file, or its path"),
        (300 * "m" + ".py", "name too long"),
        ("mine.txt", "does not end in .py"),
    ],
)
def test_a_file_that_is_no_module_is_an_error(name, words, tmp_path):
    (tmp_path / "mine.txt").write_text(GOOD)
    with pytest.raises(PluginError, match=words):
        load_plugins(files=[tmp_path / name])


def test_a_file_may_not_claim_an_installed_name(file, install):
    install("huber", GOOD)
    with pytest.raises(PluginError, match=r"'mine' \(file .*'huber'.*gemkit-huber 1\.5"):
        load_plugins(files=[file])


def test_a_file_may_not_claim_a_name_of_another_file(file, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(GOOD)
    with pytest.raises(PluginError, match=r"'other' \(file .*'mine' \(file "):
        load_plugins(files=[file, other])


def test_unknown_parts_of_a_pruner_are_reported_when_used(file):
    file.write_text(plugin_code(hook("{'mine': {'scores': 'magnitud'}}", "gemkit_pruners")))
    registry = load_plugins(files=[file])
    with pytest.raises(UnknownNameError, match=r"pruner 'mine': unknown scores.*'magnitude'"):
        registry.recipe("mine")


def test_bad_fields_of_a_pruner_are_reported_when_used(file):
    recipe = "{'mine': {'regularizer': {'name': 'l2', 'weight': -1}}}"
    file.write_text(plugin_code(hook(recipe, "gemkit_pruners")))
    registry = load_plugins(files=[file])
    with pytest.raises(OptionError, match=r"pruner 'mine': regularizer.weight = -1"):
        registry.recipe("mine")


def test_the_marker_is_the_projects_own():
    @hookimpl
    def gemkit_regularizers() -> list[type[Regularizer]]:
        return []

    assert gemkit_regularizers.gemkit_impl["wrapper"] is False
