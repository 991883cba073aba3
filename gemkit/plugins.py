"""Loading plugins: gemkit's own, then the installed ones, then files given by path.

Every plugin is examined alone, with a plugin manager of its own, so that a fault in one is told
with its name and distribution and leaves all others usable. gemkit's own parts, pruners and
presets come in by the same hooks as anybody else's.
"""

import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any, NamedTuple

from gemkit.errors import PluginError, did_you_mean
from gemkit.examine import Contribution, Fault, examine
from gemkit.parts import Part
from gemkit.preset import Preset
from gemkit.registry import KINDS, Entry, RecipeData, Refusal, Registry

__all__ = ["BUILT_IN", "KINDS", "Registry", "load_plugins"]

GROUP = "gemkit"
VARIABLE = "GEMKIT_PLUGINS"
BUILT_IN = (
    "gemkit.builtin.roundings",
    "gemkit.builtin.allocations",
    "gemkit.builtin.schedules",
    "gemkit.builtin.regularizers",
    "gemkit.builtin.initializers",
    "gemkit.builtin.checks",
    "gemkit.builtin.search_checks",
    "gemkit.methods.gem_miner",
    "gemkit.methods.edge_popup",
    "gemkit.methods.baselines",
    "gemkit.methods.imp",
    "gemkit.methods.smart_ratio",
    "gemkit.methods.snip",
    "gemkit.methods.grasp",
    "gemkit.methods.synflow",
    "gemkit.methods.prospr",
    "gemkit.models.small",
    "gemkit.models.cifar_resnet",
    "gemkit.models.resnet",
    "gemkit.models.wide_resnet",
    "gemkit.models.vgg",
    "gemkit.models.mobilenet",
    "gemkit.models.from_timm",
    "gemkit.models.from_torchvision",
    "gemkit.data.embedded",
    "gemkit.data.fake",
    "gemkit.data.cifar",
    "gemkit.data.mnist",
    "gemkit.data.svhn",
    "gemkit.data.folders",
    "gemkit.presets",
)


class Source(NamedTuple):
    """A plugin before it is loaded: its name, where it comes from, and how to be rid of a fault."""

    plugin: str
    distribution: str
    way_out: str

    def __str__(self) -> str:
        return f"plugin '{self.plugin}' ({self.distribution})"

    def error(self, fault: str) -> PluginError:
        """Say which plugin has a fault, which, and what to do."""
        stop = "" if fault.endswith("?") else "."
        return PluginError(f"{self}: {fault}{stop} {self.way_out}")


class Loaded(NamedTuple):
    """A plugin that passed examination, and what it brings."""

    source: Source
    brings: Contribution


def load_plugins(*, files: Sequence[Path] = (), only: Sequence[str] | None = None) -> Registry:
    """Load gemkit's own parts, the installed plugins and plugin `files`, and register it all.

    `only` names the installed plugins to load; by default the environment variable
    `GEMKIT_PLUGINS` does (a comma list; empty for none), and where that is not set, all are
    loaded. An installed plugin with a fault is refused, and the reason kept in the registry's
    `refused`; a file with a fault is an error at once, because somebody asked for it.
    """
    loaded: list[Loaded] = []
    for name in BUILT_IN:
        source = Source(name, "built into gemkit", "This is a bug in gemkit; please report it.")
        loaded.append(_load(source, partial(import_module, name), loaded))
    refused: list[Refusal] = []
    installed: list[Loaded] = []
    for point in _entry_points(only):
        source = Source(
            point.name,
            _distribution(point),
            f"Upgrade it, uninstall it, or set {VARIABLE} to a list of plugins without it.",
        )
        try:
            installed.append(_load(source, point.load, loaded))
        except PluginError as error:
            refused.append(Refusal(source.plugin, source.distribution, str(error)))
    loaded += installed
    for path in files:
        source = Source(path.stem, f"file {path}", "Correct the file, or its path.")
        loaded.append(_load(source, partial(_module_from, path), loaded))
    return _register(loaded, refused)


def _entry_points(only: Sequence[str] | None) -> list[metadata.EntryPoint]:
    """List the installed plugins to load, in an order that does not depend on the disk."""
    points = sorted(metadata.entry_points(group=GROUP), key=lambda p: (p.name, _distribution(p)))
    if only is None and VARIABLE in os.environ:
        only = [name.strip() for name in os.environ[VARIABLE].split(",") if name.strip()]
    if only is None:
        return points
    names = {point.name for point in points}
    for name in only:
        if name not in names:
            raise PluginError(
                f"plugin '{name}' is asked for ({VARIABLE}), but not installed"
                + (did_you_mean(name, names) or "; no plugins are")
            )
    return [point for point in points if point.name in only]


def _distribution(point: metadata.EntryPoint) -> str:
    """Name the distribution an entry point belongs to, and its version."""
    try:
        return f"{point.dist.name} {point.dist.version}" if point.dist else "no distribution"
    except Exception:  # damaged metadata must not hide which plugins there are
        return "a distribution with damaged metadata"


def _module_from(path: Path) -> object:
    """Execute a file as a module of its own, without touching the search path.

    It is listed among the modules, as pydantic looks annotations up there, under a name that two
    files of the same name in different folders do not share.
    """
    name = f"gemkit_file_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("its name does not end in .py")
    if path.exists() and not path.is_file():
        raise ImportError("it is not a plain file")
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load(source: Source, load: Callable[[], object], taken: Iterable[Loaded]) -> Loaded:
    """Load and examine one plugin; refuse it for any fault, or for a name that is taken."""
    try:
        brings = examine(load(), source.plugin)
    except Fault as fault:
        raise source.error(str(fault)) from fault
    except (Exception, SystemExit) as error:
        raise source.error(f"cannot be imported, {type(error).__name__}: {error}") from error
    for other in taken:
        for kind, name in sorted(brings.names() & other.brings.names()):
            raise source.error(
                f"{_hook(kind)} brings the name '{name}', which {other.source} has already; "
                "its author should rename it"
            )
    return Loaded(source, brings)


def _hook(kind: str) -> str:
    """Name the hook that brings things of a kind."""
    return KINDS[kind].hook if kind in KINDS else f"gemkit_{kind}"


def _register(loaded: Iterable[Loaded], refused: Iterable[Refusal]) -> Registry:
    """Put everything in its place; a name that two plugins brought belongs to neither."""
    parts: dict[str, dict[str, Entry[type[Part]]]] = {kind: {} for kind in KINDS}
    pruners: dict[str, Entry[RecipeData]] = {}
    presets: dict[str, Entry[Preset]] = {}
    claims: dict[tuple[str, str], list[Source]] = defaultdict(list)
    for source, brings in loaded:
        for key in brings.names():
            claims[key].append(source)
        for (kind, name), part in brings.parts.items():
            parts[kind][name] = Entry(part, source.plugin, source.distribution)
        for name, data in brings.pruners.items():
            pruners[name] = Entry(data, source.plugin, source.distribution)
        for name, preset in brings.presets.items():
            presets[name] = Entry(preset, source.plugin, source.distribution)
    contested = {key: _contest(*key, claims[key]) for key in claims if len(claims[key]) > 1}
    places: dict[str, dict[str, Any]] = {**parts, "pruners": pruners, "presets": presets}
    for kind, name in contested:
        places[kind].pop(name)
    return Registry(parts, pruners, presets, contested, tuple(refused))


def _contest(kind: str, name: str, claimants: Sequence[Source]) -> str:
    """Say who claims a name, through which hook, and how to choose."""
    return (
        f"'{name}' is claimed through {_hook(kind)} by "
        + " and ".join(str(source) for source in claimants)
        + f"; uninstall all but one, or set {VARIABLE} to a list with only one of them, "
        f"as in {VARIABLE}={claimants[0].plugin}"
    )
