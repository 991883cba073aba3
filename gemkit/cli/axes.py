"""The axes of a study on the command line: options that take several values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemkit.cli.command import Decorator, bundle, given, option
from gemkit.cli.options import ROLES, fields_option, integer_option
from gemkit.core.errors import OptionError

if TYPE_CHECKING:
    from gemkit.plugins.registry import Registry
    from gemkit.study.grid import Grid

_PATHS: dict[str, tuple[str, ...]] = {
    "pruner": ("pruner",),
    "density": ("density",),
    "sparsity": ("sparsity",),
    "model": ("model",),
    "dataset": ("dataset",),
    "train_on": ("dataset.train_on",),
    "seed": ("seed",),
    "epochs": ("search.epochs",),
    "finetune_epochs": ("finetune.epochs",),
    "batch_size": ("search.batch_size", "finetune.batch_size"),
    "lr": ("search.lr",),
    "finetune_lr": ("finetune.lr",),
    "on_collapse": ("on_collapse",),
    "metric": ("metric",),
    "objective": ("objective",),
    "device": ("runtime.device",),
    "devices": ("runtime.devices",),
    "threads": ("runtime.threads",),
    "precision": ("runtime.precision",),
    **{role: (f"recipe.{role}",) for role in ROLES if role != "objective"},
}
"""Option -> the fields of RunConfig that it sets."""

_TEXT = {
    "pruner",
    "model",
    "dataset",
    "train_on",
    "on_collapse",
    "metric",
    "objective",
    "device",
} | {
    "precision",
    *ROLES,
}
_FLAGS = {"compile": "runtime.compile", "compact": "runtime.compact"}


def _axis(section: str, name: str, text: str, default: str | None = None) -> Decorator:
    return option(section, name, metavar="A,B", help=text, show_default=default or False)


axis_options = bundle(
    "axes",
    {
        "pruner": _axis(
            "Cells", "--pruner", "Recipes to follow; see `gemkit parts pruners`.", "gem_miner"
        ),
        "density": _axis(
            "Cells", "--density", "Fractions of the weights to keep: 0.05, or 5%.", "0.05"
        ),
        "sparsity": _axis("Cells", "--sparsity", "Fractions to prune, instead of --density."),
        "seeds": integer_option("Cells", "--seeds", "How many seeds, 0 first.", least=1),
        "seed": _axis("Cells", "--seed", "The seeds themselves, instead of --seeds.", "0"),
        "model": _axis("Cells", "--model", "Networks; see `gemkit parts models`.", "conv4"),
        "dataset": _axis("Cells", "--dataset", "Data sets; see `gemkit parts datasets`.", "digits"),
        "train_on": _axis(
            "Cells", "--train-on", "train, or full: with the validation images.", "train"
        ),
        **{role: _axis("Parts", f"--{role}", text) for role, text in ROLES.items()},
        "fields": fields_option(
            "a role above, rewind, prunable, model, dataset, search, finetune or executor; recipe "
            "fields have none. Several values, separated by commas, make an axis"
        ),
        "epochs": _axis("Training", "--epochs", "Epochs of the search, or of each round.", "30"),
        "finetune_epochs": _axis(
            "Training", "--finetune-epochs", "Epochs of fine-tuning.", "as --epochs"
        ),
        "batch_size": _axis("Training", "--batch-size", "Images per step, in both phases.", "64"),
        "lr": _axis("Training", "--lr", "Peak learning rate of the search.", "by scores"),
        "finetune_lr": _axis(
            "Training", "--finetune-lr", "Peak learning rate of fine-tuning.", "by optimizer"
        ),
        "on_collapse": _axis(
            "Training", "--on-collapse", "error, warn or keep-one, when a layer is lost.", "warn"
        ),
        "metric": _axis("Training", "--metric", "What is measured.", "the objective's"),
        "device": _axis("Machine", "--device", "auto, cpu, cuda or mps.", "auto"),
        "devices": _axis("Machine", "--devices", "Devices that share every batch of a run.", "1"),
        "threads": _axis("Machine", "--threads", "Threads of each run, on the CPU.", "1"),
        "precision": _axis("Machine", "--precision", "32, bf16, fp16 or 64.", "32"),
        "compile": option(
            "Machine", "--compile", is_flag=True, help="Compile networks and updates."
        ),
        "compact": option(
            "Machine", "--compact", is_flag=True, help="Fine-tune without unused channels."
        ),
    },
)


def values_in(text: str, *, plain: bool) -> list[Any]:
    """Read the values of an axis; text in TOML's own syntax, such as a list, is one value."""
    from gemkit.cli.configure import parse_value

    if not plain:
        if not isinstance(whole := parse_value(text), str):
            return [whole]
        if isinstance(several := parse_value(f"[{text}]"), list) and several:
            return several  # also lists, which have commas of their own
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise OptionError(f"{text!r} has an empty value; separate values by single commas")
    return parts if plain else [parse_value(part) for part in parts]


def split_fields(texts: Sequence[str]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the values of `-o` by field, and the fields of the executor."""
    fields: dict[str, list[Any]] = {}
    executor: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals or not path:
            raise OptionError(f"-o {text}: write field=value, for example -o search.lr=0.1,1.0")
        if path.startswith("executor."):
            from gemkit.cli.configure import parse_value

            executor[path.removeprefix("executor.")] = parse_value(value.strip())
        else:
            fields[path] = values_in(value.strip(), plain=False)
    return fields, executor


def given_axes(
    options: Mapping[str, Any], fields: Mapping[str, list[Any]]
) -> dict[tuple[str, ...], list[Any]]:
    """Return the values that the user gave, by the fields that they set."""
    from gemkit.study.grid import canonical

    axes: dict[tuple[str, ...], list[Any]] = {}
    words: dict[str, str] = {}

    def add(word: str, paths: tuple[str, ...], values: list[Any]) -> None:
        for path in paths:
            field = "density" if path == "sparsity" else path
            if field in words:
                raise OptionError(f"{words[field]} and {word} both set {field}; give one")
            words[field] = word
        axes[paths] = values

    for name, paths in _PATHS.items():
        if (text := options["axes"][name]) is not None:
            add(f"--{name.replace('_', '-')}", paths, values_in(text, plain=name in _TEXT))
    for name, path in _FLAGS.items():
        if options["axes"][name]:
            add(f"--{name}", (path,), [True])
    for path, values in fields.items():
        add(f"-o {path}", (canonical(path),), values)
    if options["axes"]["seeds"] is not None:
        add("--seeds", ("seed",), list(range(options["axes"]["seeds"])))
    return axes


def study_grid(
    registry: Registry,
    file: Path | None,
    preset: str | None,
    axes: Mapping[tuple[str, ...], Sequence[Any]],
    options: Mapping[str, Any],
) -> Grid:
    """Return the study of a file or a preset, with what the options replace."""
    from gemkit.study.grid import Grid, read_grid, replaced

    grid = Grid() if file is None else read_grid(file)
    if preset is not None:
        if file is not None:
            raise OptionError("a study file and --preset both say what runs; give one")
        known = registry.preset(preset).thing
        own = known.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        grid = Grid(
            base={name: own[name] for name in own if name not in ("help", "note", "expected")}
        )
    changes: dict[str, Any] = {"run.checkpoint_minutes": [options["checkpoint_minutes"]]}
    if file is not None and not given("checkpoint_minutes"):
        changes = {}
    grid = replaced(grid, {**{(name,): own for name, own in changes.items()}, **axes})
    updates: dict[str, Any] = {}
    if checks := check_words(options["checks"]):
        updates["checks"] = checks
    if not grid.name:
        updates["name"] = _name(axes)
    return grid.model_copy(update=updates)


def _name(axes: Mapping[tuple[str, ...], Sequence[Any]]) -> str:
    """Name a study after its networks and data sets."""
    words = [axes.get(("model",), ["conv4"]), axes.get(("dataset",), ["digits"])]
    return "-".join("+".join(_word(one) for one in own) for own in words)


def _word(name: Any) -> str:  # noqa: ANN401 - a name
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in str(name))


def check_words(checks: Sequence[str]) -> list[str]:
    """Return the checks that are given, separated by commas or by repeating the option."""
    return [name.strip() for words in checks for name in words.split(",") if name.strip()]
