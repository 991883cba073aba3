"""`gemkit compact`: remove the channels of a network that a ticket does not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import Answer, SectionedCommand, answers_json
from gemkit.cli.options import beside_options, fields_option, plugin_option, world_options
from gemkit.cli.targets import beside, claimed
from gemkit.cli.tickets import FOUND, TRAINED, TicketPath, rebuild_on_cpu, ticket_argument
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from torch import nn

    from gemkit.compaction import Compact
    from gemkit.compaction.macs import Macs

_IMAGES = 64
"""Test images on which outputs are compared."""


@click.command(cls=SectionedCommand)
@ticket_argument(TRAINED, FOUND)
@world_options(None, None)
@fields_option("model or dataset")
@beside_options("compact", "the smaller network")
@answers_json
@plugin_option
def compact(
    file: TicketPath,
    world: Mapping[str, Any],
    fields: Sequence[str],
    out: Path | None,
    force: bool,
    plugins: Sequence[Path],
) -> Answer:
    """Remove the channels of a TICKET's network that no signal reaches, or that reach no output.

    The result is an ordinary, smaller network with the same outputs. It is saved as safetensors;
    `gemkit.compaction.load_compact(file, model)` loads it into a model. Of a RUN, use the
    fine-tuned ticket, or the one that its search found if there is none.
    """
    from gemkit.compaction import compact, difference, save_compact
    from gemkit.compaction.macs import count_macs

    ticket = file.load()
    target = beside(file.path, "compact", out, force=force)
    with claimed(target, force=force):
        setup = rebuild_on_cpu(ticket, world, fields, plugins)
        small = compact(ticket, setup.model, shape=setup.data.shape)
        images, _ = next(setup.data.test.batches(_IMAGES))
        masked = ticket.apply(setup.model)
        before, after = (count_macs(model, setup.data.shape) for model in (masked, small.model))
        save_compact(small, target)
    data = {
        "compact": str(target),
        "ticket": str(file),
        "error": difference(masked, small.model, images),
        "multiplications": {
            "masked": before.total,
            "compact": after.total,
            "useful": before.nonzero,
        },
        "parameters": {"masked": _parameters(masked), "compact": _parameters(small.model)},
        "layers": [width._asdict() for width in small.widths],
        "carried": small.carried,
        "untouched": small.untouched,
    }
    return Answer(data, _text(data, small, before, after))


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _text(data: Mapping[str, Any], small: Compact, before: Macs, after: Macs) -> str:
    """Return a table of the channels of each layer, and what is saved."""
    from gemkit.report.tables import facts, text_table

    table = text_table(
        ("layer", "channels", "of"),
        [(width.name, f"{width.kept:,}", f"{width.before:,}") for width in small.widths],
        numbers=(1, 2),
    )
    sizes = data["parameters"]
    rows = {
        "multiplications": f"{after.total:,} of {before.total:,} an image "
        f"({_fewer(before.total, after.total)}; {before.nonzero:,} with kept weights)",
        "parameters": f"{sizes['compact']:,} of {sizes['masked']:,} "
        f"({_fewer(sizes['masked'], sizes['compact'])})",
        "largest error": f"{data['error']:.1e} of the largest output, on test images in float64",
        "compact": data["compact"],
    }
    if small.untouched:
        steps = number_of(len(small.untouched), "step")
        rows["untouched"] = f"everything around {steps} of the forward pass"
    return f"{table}\n\n{facts(rows)}"


def _fewer(before: float, after: float) -> str:
    return f"{before / after:.2f} × fewer" if after < before else "no gain"
