"""The body of `gemkit bench`."""

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from gemkit.cli.answers import Answer
from gemkit.cli.compacting import on_processor
from gemkit.cli.ticket_argument import TicketPath
from gemkit.compaction import Compact, compact, save_compact
from gemkit.compaction.race import Times, race
from gemkit.compaction.sparse import csr_bytes, sparse_where_faster
from gemkit.compaction.work import work
from gemkit.data.source import Source
from gemkit.report.tables import facts, text_table
from gemkit.ticket import Ticket
from gemkit.wording import number_of

_GAIN = 0.95
"""A form must take less than this fraction of the masked one's time to be called faster."""

_STEADY = 1.3
"""What quartiles of the same network's times may differ by on a machine that is not busy."""


def measure(
    file: TicketPath,
    *,
    world: Mapping[str, Any],
    fields: Sequence[str],
    batch: int,
    threads: int | None,
    turns: int,
    plugins: Sequence[Path],
) -> Answer:
    """Time the four forms of a ticket's network, and say how large they are."""
    if threads is not None:
        torch.set_num_threads(threads)
    ticket = file.load()
    bench = on_processor(ticket, world, fields, plugins)
    images, shape = _images(bench.data.test, batch), bench.data.shape
    small = compact(ticket, bench.model, shape=shape)
    forms, sparse_layers = _forms(ticket, bench.model, small, images)
    times = race({name: _pass(model, images) for name, model in forms.items()}, turns)
    sizes = {
        "dense": _bytes(forms["dense"]),
        "masked": file.path.stat().st_size,
        "compact": _saved(small),
        "sparse": csr_bytes(small.ticket),  # whatever the kernels, it could be stored so
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
            | {"bytes": sizes[name], "multiplications": work(model, shape).all}
            for name, model in forms.items()
        },
    }
    return Answer(data, _text(data))


def _forms(
    ticket: Ticket, model: nn.Module, small: Compact, images: Tensor
) -> tuple[dict[str, nn.Module], list[str]]:
    """Make the contenders, all in evaluation mode, and name the layers that are sparse."""
    dense = copy.deepcopy(model)
    dense.load_state_dict(ticket.state)
    masked = ticket.apply(copy.deepcopy(model))
    sparse, replaced = sparse_where_faster(small.model, images)
    forms = {"dense": dense, "masked": masked, "compact": small.model}
    if replaced:  # else it is the compact network once more
        forms["sparse"] = sparse
    return {name: form.eval() for name, form in forms.items()}, replaced


def _images(source: Source, batch: int) -> Tensor:
    """Return so many images, some of them again where there are not enough."""
    images, _ = next(source.batches(batch))
    return images.repeat(-(-batch // len(images)), 1, 1, 1)[:batch]


def _pass(model: nn.Module, images: Tensor) -> Callable[[], object]:
    def forward() -> object:
        with torch.no_grad():
            return model(images)

    return forward


def _about(own: Times, masked: Times, batch: int) -> dict[str, Any]:
    """Put a contender's times into plain numbers."""
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
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return len(to_safetensors(state))


def _saved(small: Compact) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "compact.safetensors"
        save_compact(small, path)
        return path.stat().st_size


def _text(data: Mapping[str, Any]) -> str:
    """Lay the forms out as a table, and say which of them are worth it."""
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
    sparse = f"{layers} of it" if found else "no gain: no linear layer is faster so"
    told = {
        "timed": f"{number_of(data['batch'], 'image')} at a time, "
        f"{number_of(data['threads'], 'thread')}, {number_of(data['turns'], 'turn')}",
        "sparse": f"{sparse}; kept weights and their places take "
        f"{data['bytes_as_csr'] / 2**20:.2f} MiB",
    }
    low, high = data["forms"]["masked"]["quartiles"]
    if high > _STEADY * low:
        told["unsteady"] = (
            f"a quarter of the masked network's turns took {high / low:.1f} times as long as "
            "another quarter; repeat this while nothing else runs, or with more --turns"
        )
    return f"{text_table(header, rows, numbers=(1, 3, 4, 6, 7))}\n\n{facts(told)}"
