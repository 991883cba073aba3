"""The body of `gemkit compact`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemkit.cli.answers import Answer
from gemkit.cli.fields import sort_fields
from gemkit.cli.retraining import beside, rebuild
from gemkit.cli.ticket_argument import TicketPath
from gemkit.compaction import Compact, compact, difference, save_compact
from gemkit.compaction.work import Work, work
from gemkit.plan import Runtime
from gemkit.plugins import load_plugins
from gemkit.report.tables import facts, text_table
from gemkit.runs.bench import Bench, open_fabric
from gemkit.ticket import Ticket
from gemkit.wording import number_of

_IMAGES = 64
"""How many test images outputs are compared on."""


def make(
    file: TicketPath,
    *,
    world: Mapping[str, Any],
    fields: Sequence[str],
    out: Path | None,
    force: bool,
    plugins: Sequence[Path],
) -> Answer:
    """Compact a ticket file's network, compare it with the masked one, and save it."""
    ticket = file.load()
    target = beside(file.path, "compact", out, force=force)
    bench = on_processor(ticket, world, fields, plugins)
    small = compact(ticket, bench.model, shape=bench.data.shape)
    images, _ = next(bench.data.test.batches(_IMAGES))
    masked = ticket.apply(bench.model)
    before, after = (work(model, bench.data.shape) for model in (masked, small.model))
    save_compact(small, target)
    data = {
        "compact": str(target),
        "ticket": str(file),
        "error": difference(masked, small.model, images),
        "multiplications": {"masked": before.all, "compact": after.all, "useful": before.useful},
        "parameters": {"masked": _numbers(masked), "compact": _numbers(small.model)},
        "layers": [width._asdict() for width in small.widths],
        "carried": small.carried,
        "untouched": small.untouched,
    }
    return Answer(data, _text(data, small, before, after))


def on_processor(
    ticket: Ticket, world: Mapping[str, Any], fields: Sequence[str], plugins: Sequence[Path]
) -> Bench:
    """Rebuild the network and load the data a ticket speaks of, for this machine's processor."""
    runtime = Runtime(device="cpu")
    given = sort_fields(fields, ("model", "dataset"))
    registry = load_plugins(files=plugins)
    seed, fabric = ticket.info.seed, open_fabric(runtime)
    return rebuild(ticket, registry, world, given, seed, runtime, fabric)


def fewer(before: float, after: float) -> str:
    """Word by how much something has become less."""
    return f"{before / after:.2f} × fewer" if after < before else "no gain"


def _numbers(model: Any) -> int:  # noqa: ANN401 - a module
    return sum(parameter.numel() for parameter in model.parameters())


def _text(data: Mapping[str, Any], small: Compact, before: Work, after: Work) -> str:
    """Show what is left of every layer, and what that is worth."""
    table = text_table(
        ("layer", "channels", "of"),
        [(width.name, f"{width.kept:,}", f"{width.before:,}") for width in small.widths],
        numbers=(1, 2),
    )
    sizes = data["parameters"]
    rows = {
        "multiplications": f"{after.all:,} of {before.all:,} an image "
        f"({fewer(before.all, after.all)}; {before.useful:,} with kept weights)",
        "parameters": f"{sizes['compact']:,} of {sizes['masked']:,} "
        f"({fewer(sizes['masked'], sizes['compact'])})",
        "largest error": f"{data['error']:.1e} of the largest output, on test images in float64",
        "compact": data["compact"],
    }
    if small.untouched:
        steps = number_of(len(small.untouched), "step")
        rows["untouched"] = f"everything around {steps} of the forward pass"
    return f"{table}\n\n{facts(rows)}"
