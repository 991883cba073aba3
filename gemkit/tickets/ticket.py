"""The ticket: a mask, the weights it belongs to, and where both come from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from pydantic import JsonValue, ValidationError
from torch import Tensor, nn

from gemkit.core.errors import TicketError, some
from gemkit.core.tensor_file import DTYPES, explain
from gemkit.core.tensors import Tensors, kept, total
from gemkit.core.text import escaped
from gemkit.models.check import allocate_buffers_, check_model, unwrapped
from gemkit.tickets import file as ticket_file
from gemkit.tickets.apply import effective, misfits
from gemkit.tickets.file import REPLACE_IT, Content
from gemkit.tickets.hold import Hold
from gemkit.tickets.imported import external_masks, imported_info, pruned_masks
from gemkit.tickets.info import TicketInfo

Model = TypeVar("Model", bound=nn.Module)


class Layer(NamedTuple):
    """One prunable tensor: its name, shape, and how many of its entries are kept."""

    name: str
    shape: tuple[int, ...]
    kept: int
    prunable: int


@dataclass(frozen=True, eq=False, repr=False)
class Ticket:
    """A mask, the weights it belongs to, and where both come from.

    `mask` has one boolean tensor per prunable parameter, in module order. `state` is the whole
    state_dict at the start of fine-tuning; its prunable weights are *not* masked, because controls
    such as a shuffled mask need the pruned ones too. Both are copies on the CPU. Tickets are equal
    if their digests are.
    """

    mask: Tensors
    state: Tensors
    info: TicketInfo

    def __post_init__(self) -> None:
        flaws = _flaws(self.mask, self.state)
        if flaws:
            raise TicketError("these tensors make no ticket: " + "; ".join(flaws))
        for field in ("mask", "state"):
            own = {name: _own(tensor) for name, tensor in getattr(self, field).items()}
            object.__setattr__(self, field, own)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ticket) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"<{self.summary()}>"

    @property
    def kept(self) -> int:
        """The number of weights that the mask keeps."""
        return kept(self.mask)

    @property
    def prunable(self) -> int:
        """The number of prunable weights."""
        return total(self.mask)

    @property
    def density(self) -> float:
        """The actual fraction of prunable weights that is kept."""
        return self.kept / self.prunable

    @property
    def layers(self) -> list[Layer]:
        """The prunable tensors, in module order."""
        return [
            Layer(name, tuple(mask.shape), int(mask.count_nonzero()), mask.numel())
            for name, mask in self.mask.items()
        ]

    def summary(self) -> str:
        """Describe the ticket in one line."""
        return (
            f"{escaped(self.info.pruner)} ticket for {self.info.made_for()}: keeps {self.kept:,} "
            f"of {self.prunable:,} weights (density {self.density:.4g}, target "
            f"{self.info.density_target:g}), {self.info.stage}, seed {self.info.seed}"
        )

    def with_info(self, **facts: object) -> Ticket:
        """Return the same ticket with other fields in `info`."""
        return replace(self, info=self.info.model_copy(update=facts))

    def digest(self) -> str:
        """Return the SHA-256 of the whole ticket, the same as in its file."""
        return ticket_file.digest(self._content())

    def apply(self, model: Model) -> Model:
        """Load the kept weights and the rest of the state into a model, and return it.

        The model must have the names, shapes and tied weights of the ticket's network; its tensors
        keep their device, dtype and memory format. Nothing is written unless everything fits. A
        model that is wrapped, by DDP or `torch.compile`, gets the weights inside its wrapper.
        """
        self.check_fit(model)
        own = unwrapped(model)
        allocate_buffers_(own)
        state = own.state_dict(keep_vars=True)
        own.load_state_dict(effective(self.mask, self.state, state))
        return model

    def hold(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        weights: bool = True,
    ) -> Hold:
        """Keep the pruned weights of a model at exactly zero in a training loop of your own.

        Loads the ticket into the model (with `weights=False`, only the mask), and applies the mask
        after every step of every optimizer of its parameters, also of one that is made later. An
        `optimizer` that is given must train some of them. Ends with `remove()`, or with a `with`
        block.
        """
        if weights:
            self.check_fit(model)
        held = Hold(self.mask, unwrapped(model), optimizer)  # refuses before anything is written
        if weights:
            try:
                self.apply(model)
            except BaseException:
                held.remove()
                raise
        return held

    @classmethod
    def from_masks(
        cls,
        model: nn.Module,
        masks: Tensors,
        *,
        name: str = "imported",
        shape: tuple[int, ...] | None = None,
        classes: int | None = None,
        trained: bool = False,
    ) -> Ticket:
        """Make a ticket of a model's weights and masks that were found elsewhere.

        Args:
            model: the network with the weights to start fine-tuning from.
            masks: zeros and ones by parameter name; weights without a mask are not pruned.
            name: what to call the method that found the masks.
            shape: the shape of an input.
            classes: the number of classes.
            trained: whether the weights are trained already; checks need a ticket of which they
                are not.
        """
        own = check_model(model)
        state = own.state_dict(keep_vars=True)
        found = external_masks(own, masks)
        return cls(found, state, imported_info(found, state, name, shape, classes, trained))

    @classmethod
    def from_pruned(
        cls,
        model: nn.Module,
        *,
        name: str = "imported",
        shape: tuple[int, ...] | None = None,
        classes: int | None = None,
        trained: bool = False,
    ) -> Ticket:
        """Make a ticket of a pruned model: of its zeros, or the masks of `torch.nn.utils.prune`.

        Where one layer has such a mask, those without one are not pruned. The other arguments are
        those of `from_masks`. The ticket is for the network without the reparametrization.
        """
        found, state = pruned_masks(check_model(model))
        return cls(found, state, imported_info(found, state, name, shape, classes, trained))

    def check_fit(self, model: nn.Module) -> None:
        """Raise `TicketError` unless names, shapes, types and tied weights fit the model."""
        own = unwrapped(model)
        flaws = misfits(self.mask, self.state, own.state_dict(keep_vars=True), self.info.tied)
        if flaws:
            raise TicketError(
                f"the ticket does not fit this {type(own).__name__}: it was made for "
                f"{self.info.made_for()}\n  - "
                + "\n  - ".join(flaws)
                + "\napply it to that network"
            )

    def save(self, path: str | os.PathLike[str], *, within: Path | None = None) -> None:
        """Write one safetensors file atomically; the same ticket gives the same bytes.

        No link below `within` is followed; see `gemkit.core.atomic_io`.
        """
        content = self._content()
        try:
            _read_info(content.info)
        except ValueError as error:  # fail now, not when the file is needed
            raise TicketError(
                f"cannot save as {path}: `info` would not read back: {error}"
            ) from error
        ticket_file.write(content, Path(path), within=within)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, within: Path | None = None) -> Ticket:
        """Read an untrusted ticket file; see `gemkit.tickets.file`.

        No link below `within` is followed; see `gemkit.core.atomic_io`.
        """
        content = ticket_file.read(Path(path), within=within)
        if "compact" in content.info:
            raise TicketError(
                f"{path} is a compact network, not a ticket; give the ticket it was made from, or "
                "read it with gemkit.compaction.load_compact"
            )
        try:
            return cls(content.mask, content.state, _read_info(content.info))
        except ValidationError as error:
            raise TicketError(
                f"{path} is no valid ticket: its info does not fit this version of gemkit "
                f"({explain(error)}); install the gemkit that wrote it, or search again"
            ) from error
        except TicketError as flaw:
            raise TicketError(f"{path} is no valid ticket: {flaw}; {REPLACE_IT}") from flaw

    @classmethod
    def verify(cls, path: str | os.PathLike[str]) -> str:
        """Check a ticket file as `load` does and return its summary."""
        return cls.load(path).summary()

    def _content(self) -> Content:
        """Return the content of the file."""
        return Content(self.mask, self.state, self.info.model_dump(mode="json"))


def _read_info(data: dict[str, JsonValue]) -> TicketInfo:
    """Validate info as JSON, in which tuples are lists."""
    return TicketInfo.model_validate_json(json.dumps(data, allow_nan=False))


def _own(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU, in C order."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _flaws(mask: Tensors, state: Tensors) -> list[str]:
    """List why these tensors make no ticket."""
    everything = [*state.items(), *mask.items()]
    if unsupported := [name for name, tensor in everything if not _storable(tensor)]:
        return [f"only dense tensors of common dtypes can be saved, not {some(unsupported)}"]
    shared = [name for name in mask if name in state]
    found = [
        ("masks without weights in the state", [name for name in mask if name not in state]),
        (
            "masks of another shape than their weights",
            [name for name in shared if mask[name].shape != state[name].shape],
        ),
        ("masks that are not boolean", [n for n in mask if mask[n].dtype != torch.bool]),
    ]
    flaws = [f"{what}: {some(names)}" for what, names in found if names]
    return flaws if total(mask) else [*flaws, "the mask has no entries"]


def _storable(tensor: object) -> bool:
    """Return whether safetensors can write it: a dense tensor with data, of a known dtype."""
    return (
        isinstance(tensor, Tensor)
        and tensor.dtype in DTYPES
        and tensor.layout is torch.strided
        and not tensor.is_meta
    )
