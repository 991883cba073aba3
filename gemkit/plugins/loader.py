"""Load plugins: the built-in ones, then the installed ones, then files given by path.

Every plugin is validated with its own plugin manager, so that a fault names the plugin and does not
affect the others. The built-in parts use the same hooks.
"""

import os
import sys
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any, NamedTuple

from gemkit.core.errors import PluginError, did_you_mean
from gemkit.plugins.registry import KINDS, Entry, Refusal, Registry
from gemkit.plugins.validate import Contribution, Fault, validate

__all__ = ["BUILT_IN", "KINDS", "Registry", "load_plugins"]

GROUP = "gemkit"
VARIABLE = "GEMKIT_PLUGINS"
BUILT_IN = (
    "gemkit.builtin.roundings",
    "gemkit.builtin.allocations",
    "gemkit.builtin.schedules",
    "gemkit.builtin.regularizers",
    "gemkit.builtin.auto",
    "gemkit.builtin.initializers",
    "gemkit.builtin.structures",
    "gemkit.builtin.objectives",
    "gemkit.builtin.csv_log",
    "gemkit.sanity.controls",
    "gemkit.sanity.search_controls",
    "gemkit.sanity.permute",
    "gemkit.sanity.connectivity",
    "gemkit.methods.gem_miner",
    "gemkit.methods.edge_popup",
    "gemkit.methods.baselines",
    "gemkit.methods.imp",
    "gemkit.methods.lamp",
    "gemkit.methods.regrowth",
    "gemkit.methods.continuous_sparsification",
    "gemkit.methods.movement",
    "gemkit.methods.smart_ratio",
    "gemkit.methods.snip",
    "gemkit.methods.grasp",
    "gemkit.methods.synflow",
    "gemkit.methods.prospr",
    "gemkit.models.small",
    "gemkit.models.transformer",
    "gemkit.models.cifar_resnet",
    "gemkit.models.resnet",
    "gemkit.models.wide_resnet",
    "gemkit.models.vgg",
    "gemkit.models.mobilenet",
    "gemkit.models.from_timm",
    "gemkit.models.from_torchvision",
    "gemkit.data.embedded",
    "gemkit.data.fake",
    "gemkit.data.generated",
    "gemkit.data.cifar",
    "gemkit.data.mnist",
    "gemkit.data.svhn",
    "gemkit.data.folders",
    "gemkit.presets",
    "gemkit.study.executors",
)


class Source(NamedTuple):
    """A plugin before it is loaded: its name, where it comes from, and the way out of a fault."""

    plugin: str
    distribution: str
    way_out: str

    def __str__(self) -> str:
        return f"plugin '{self.plugin}' ({self.distribution})"

    def error(self, fault: str) -> PluginError:
        """Return an error that names the plugin, its fault and the way out."""
        stop = "" if fault.endswith("?") else "."
        return PluginError(f"{self}: {fault}{stop} {self.way_out}")


class Loaded(NamedTuple):
    """A valid plugin, and what it registers."""

    source: Source
    contribution: Contribution


def load_plugins(
    *, files: Sequence[Path | str] = (), only: Sequence[str] | None = None
) -> Registry:
    """Load the built-in parts, the installed plugins and plugin `files` into a registry.

    `only` names the installed plugins to load. It defaults to the environment variable
    `GEMKIT_PLUGINS` (comma-separated; empty for none), or to all if that is not set. An installed
    plugin with a fault is skipped, and the registry's `refused` says why; a file with a fault is an
    error.
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
    for path in map(Path, files):
        source = Source(path.stem, f"file {path}", "Correct the file, or its path.")
        loaded.append(_load(source, partial(_module_from, path), loaded))
    return replace(_register(loaded, refused), files=tuple(str(Path(file)) for file in files))


def _entry_points(only: Sequence[str] | None) -> list[metadata.EntryPoint]:
    """List the installed plugins to load, sorted by name."""
    points = sorted(metadata.entry_points(group=GROUP), key=lambda p: (p.name, _distribution(p)))
    if only is None and VARIABLE in os.environ:
        only = [name.strip() for name in os.environ[VARIABLE].split(",") if name.strip()]
    if only is None:
        return points
    names = {point.name for point in points}
    for name in only:
        if name not in names:
            raise PluginError(
                f"plugin '{name}' is requested ({VARIABLE}), but not installed"
                + (did_you_mean(name, names) or "; no plugins are")
            )
    return [point for point in points if point.name in only]


def _distribution(point: metadata.EntryPoint) -> str:
    """Return the name and version of the distribution of an entry point."""
    try:
        return f"{point.dist.name} {point.dist.version}" if point.dist else "no distribution"
    except Exception:  # damaged metadata must not hide the other plugins
        return "a distribution with damaged metadata"


def _module_from(path: Path) -> object:
    """Execute a file as a module, without changing the search path.

    It is added to `sys.modules`, where pydantic looks up annotations, under a name that is unique
    to its path.
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
    """Load and validate one plugin; refuse any fault, and names that are already registered."""
    try:
        contribution = validate(load(), source.plugin)
    except Fault as fault:
        raise source.error(str(fault)) from fault
    except (Exception, SystemExit) as error:
        raise source.error(
            f"cannot be imported, {type(error).__name__}: {_first_sentence(error)}{_place(error)}"
        ) from error
    for other in taken:
        for kind, name in sorted(contribution.keys() & other.contribution.keys()):
            raise source.error(
                f"{_hook(kind)} registers the name '{name}', which {other.source} has already; "
                "its author should rename it"
            )
    return Loaded(source, contribution)


def _first_sentence(error: BaseException) -> str:
    """Return the message of an error; shorten pydantic's about fields without a type."""
    sentence, _, rest = str(error).partition(". All model fields require a type annotation")
    way_out = "; give a field its type, and a constant the type ClassVar" if rest else ""
    return f"{sentence}{way_out}"


def _place(error: BaseException) -> str:
    """Return the innermost line of a module that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f", at {one.filename}:{one.lineno}" for one in frames if one.name == "<module>"]
    return lines[-1] if lines else ""


def _hook(kind: str) -> str:
    """Return the hook that registers things of a kind."""
    return KINDS[kind].hook if kind in KINDS else f"gemkit_{kind}"


def _register(loaded: Iterable[Loaded], refused: Iterable[Refusal]) -> Registry:
    """Build the registry; a name that two plugins claim belongs to neither."""
    entries: dict[str, dict[str, Entry[Any]]] = {k: {} for k in (*KINDS, "pruners", "presets")}
    claims: dict[tuple[str, str], list[Source]] = defaultdict(list)
    for source, contribution in loaded:
        for (kind, name), thing in contribution.items():
            claims[kind, name].append(source)
            entries[kind][name] = Entry(thing, source.plugin, source.distribution)
    contested = {key: _contest(*key, claims[key]) for key in claims if len(claims[key]) > 1}
    for kind, name in contested:
        entries[kind].pop(name)
    pruners, presets = entries.pop("pruners"), entries.pop("presets")
    return Registry(entries, pruners, presets, contested, tuple(refused))


def _contest(kind: str, name: str, claimants: Sequence[Source]) -> str:
    """Say which plugins claim a name, through which hook, and how to choose."""
    return (
        f"'{name}' is claimed through {_hook(kind)} by "
        + " and ".join(str(source) for source in claimants)
        + f"; uninstall all but one, or set {VARIABLE} to a list with only one of them, "
        f"as in {VARIABLE}={claimants[0].plugin}"
    )
