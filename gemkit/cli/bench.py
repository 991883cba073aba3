"""`gemkit bench`: time the network of a ticket in its dense, masked, compact and sparse forms."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import Answer, SectionedCommand, answers_json
from gemkit.cli.options import fields_option, integer_option, plugin_option, world_options
from gemkit.cli.tickets import FOUND, TRAINED, TicketPath, rebuild_on_cpu, ticket_argument
from gemkit.core.memory import during
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gemkit.compaction import Compact
    from gemkit.compaction.timing import Times
    from gemkit.data.source import Source
    from gemkit.tickets.ticket import Ticket

_GAIN = 0.95
"""A form must take less than this fraction of the masked one's time to be called faster."""

_STEADY = 1.3
"""How much quartiles of one network's times may differ on a machine that is not busy."""


@click.command(cls=SectionedCommand)
@ticket_argument(TRAINED, FOUND)
@world_options(None, None)
@fields_option("model or dataset")
@integer_option("Machine", "--batch", "Images at a time.", least=1, default=32)
@integer_option(
    "Machine", "--threads", "Threads to compute with.", least=1, show_default="as torch chooses"
)
@integer_option("Machine", "--turns", "How often each form is timed.", least=1, default=15)
@answers_json
@plugin_option
def bench(
    file: TicketPath,
    world: Mapping[str, Any],
    fields: Sequence[str],
    batch: int,
    threads: int | None,
    turns: int,
    plugins: Sequence[Path],
) -> Answer:
    """Time the network of a TICKET on this machine's processor, in four forms.

    Dense has all weights, masked has zeros in place of pruned ones, compact has no unused channels,
    and sparse is compact with linear layers that skip zeros if that is faster. The forms take
    turns, so that other load slows all of them. Of a RUN, use the fine-tuned ticket, or the one
    that its search found if there is none.
    """
    import torch

    from gemkit.compaction import compact
    from gemkit.compaction.macs import count_macs
    from gemkit.compaction.sparse import csr_bytes
    from gemkit.compaction.timing import time_interleaved

    if threads is not None:
        torch.set_num_threads(threads)
    ticket = file.load()
    setup = rebuild_on_cpu(ticket, world, fields, plugins)
    images, shape = _images(setup.data.test, batch), setup.data.shape
    small = compact(ticket, setup.model, shape=shape)
    forms, sparse_layers = _forms(ticket, setup.model, small, images)
    with during("timing"):
        times = time_interleaved(
            {name: _forward(model, images) for name, model in forms.items()}, turns
        )
    sizes = {
        "dense": _bytes(forms["dense"]),
        "masked": file.path.stat().st_size,
        "compact": _saved(small),
        "sparse": csr_bytes(
            small.ticket
        ),  # the size of the stored form, even if its kernels are not used
    }
    data = {
        "ticket": str(file),
        "batch": batch,
        "threads": torch.get_num_threads(),
        "turns": turns,
        "sparse_layers": sparse_layers,
        "bytes_as_csr": sizes["sparse"],
        "forms": {
            name: _about(times[name], times["masked"], batch)
            | {"bytes": sizes[name], "multiplications": count_macs(model, shape).total}
            for name, model in forms.items()
        },
    }
    return Answer(data, _text(data))


def _forms(
    ticket: Ticket, model: nn.Module, small: Compact, images: Tensor
) -> tuple[dict[str, nn.Module], list[str]]:
    """Return the forms in evaluation mode, and the names of the sparse layers."""
    from gemkit.compaction.sparse import sparse_where_faster

    dense = copy.deepcopy(model)
    dense.load_state_dict(ticket.state)
    masked = ticket.apply(copy.deepcopy(model))
    sparse, replaced = sparse_where_faster(small.model, images)
    forms = {"dense": dense, "masked": masked, "compact": small.model}
    if replaced:  # else it equals the compact network
        forms["sparse"] = sparse
    return {name: form.eval() for name, form in forms.items()}, replaced


def _images(source: Source, batch: int) -> Tensor:
    """Return a batch of images; repeat them where there are not enough."""
    images, _ = next(source.batches(batch))
    return images.repeat(-(-batch // len(images)), *[1] * (images.ndim - 1))[:batch]


def _forward(model: nn.Module, images: Tensor) -> Callable[[], object]:
    import torch

    def forward() -> object:
        with torch.no_grad():
            return model(images)

    return forward


def _about(own: Times, masked: Times, batch: int) -> dict[str, Any]:
    """Return the times of a form as plain numbers."""
    low, median, high = own.spread
    return {
        "milliseconds": 1e3 * median,
        "quartiles": [1e3 * low, 1e3 * high],
        "images_per_second": batch / median,
        "times_masked": own.ratio(masked),
        "gain": own.against(masked).high < _GAIN,
    }


def _bytes(model: nn.Module) -> int:
    """Return the size of a model's state as a safetensors file."""
    from safetensors.torch import save

    return len(save({name: tensor.clone() for name, tensor in model.state_dict().items()}))


def _saved(small: Compact) -> int:
    """Return the size of a compact network as a file."""
    from gemkit.compaction import save_compact

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "compact.safetensors"
        save_compact(small, path)
        return path.stat().st_size


def _text(data: Mapping[str, Any]) -> str:
    """Show the forms as a table, and say which of them are faster."""
    from gemkit.report.tables import facts, text_table

    header = ("form", "ms", "quartiles", "images/s", "of masked", "", "MiB", "multiplications")
    rows = [
        (
            name,
            f"{one['milliseconds']:.2f}",
            "–".join(f"{edge:.2f}" for edge in one["quartiles"]),
            f"{one['images_per_second']:,.0f}",
            f"{one['times_masked']:.2f} ×",
            "" if name in {"dense", "masked"} else "faster" if one["gain"] else "no gain",
            f"{one['bytes'] / 2**20:.2f}",
            f"{one['multiplications']:,}",
        )
        for name, one in data["forms"].items()
    ]
    layers = number_of(len(data["sparse_layers"]), "linear layer")
    found = bool(data["sparse_layers"])
    sparse = layers if found else "no gain: no linear layer is faster as sparse"
    notes = {
        "timed": f"{number_of(data['batch'], 'image')} at a time, "
        f"{number_of(data['threads'], 'thread')}, {number_of(data['turns'], 'turn')}",
        "sparse": f"{sparse}; kept weights and their indices take "
        f"{data['bytes_as_csr'] / 2**20:.2f} MiB",
    }
    low, high = data["forms"]["masked"]["quartiles"]
    if high > _STEADY * low:
        notes["unsteady"] = (
            f"a quarter of the masked network's turns took {high / low:.1f} times as long as "
            "another quarter; repeat this while nothing else runs, or with more --turns"
        )
    return f"{text_table(header, rows, numbers=(1, 3, 4, 6, 7))}\n\n{facts(notes)}"
