"""The ticket: a mask, the weights it belongs to, and where both come from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from torch import Tensor, nn

from gemkit.core.bounded import Classes, Count, Density, ImageShape, Name, Seed, Spec
from gemkit.core.errors import TicketError, some
from gemkit.core.limits import MAX_FREEZES
from gemkit.core.tensor_file import DTYPES, explain
from gemkit.core.tensors import Tensors, kept, total
from gemkit.core.text import escaped, number_of
from gemkit.data.fingerprint import Fingerprint
from gemkit.tickets import file as ticket_file
from gemkit.tickets.apply import effective, misfits
from gemkit.tickets.file import REPLACE_IT, Content
from gemkit.training.plan import CollapsePolicy, Plan

Model = TypeVar("Model", bound=nn.Module)
_Tie = Annotated[list[Annotated[str, Field(max_length=512)]], Field(min_length=2, max_length=1_000)]
_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FreezeRecord(BaseModel):
    """One freeze of the search that found the ticket."""

    model_config = _STRICT

    step: Count = Field(description="the optimizer step before it")
    target: Density = Field(description="its target density")
    alive: Count = Field(description="how many weights were alive after it")
    kept: Count = Field(description="how many weights the mask kept after it")


class TicketInfo(BaseModel):
    """Where a ticket comes from: everything needed to repeat the search and rebuild the network."""

    model_config = _STRICT

    pruner: Name = Field(description="the name of the pruner that found it")
    recipe: Spec = Field(description="the resolved recipe, as Recipe.to_data()")
    model: Spec | None = Field(
        description="the network as part data, or {'custom': 'package.module:function'}"
    )
    dataset: Spec | None = Field(description="the data set as part data")
    shape: ImageShape | None = Field(
        description="the shape of the inputs the network was built for, such as (channels, height, "
        "width)"
    )
    classes: Classes | None = Field(
        description="the classes the network was built for, if targets are classes"
    )
    density_target: Density = Field(description="the target density of the search")
    seed: Seed = Field(description="the seed of the search")
    epochs: Count = Field(description="how many epochs the search trained")
    stage: Literal["found", "finetuned"] = Field(
        description="'found' by a search, or 'finetuned' since"
    )
    plan: Plan | None = Field(
        default=None, description="how the search trained, with every default written out"
    )
    versions: dict[Name, Name] = Field(
        max_length=1000, description="versions of gemkit, torch and every plugin used"
    )
    history: list[FreezeRecord] = Field(
        max_length=MAX_FREEZES, description="every freeze of the search, in order"
    )
    alive: Count | None = Field(
        default=None,
        description="how many weights were alive when the mask was chosen; it may keep fewer where "
        "scores are rounded",
    )
    partway: bool = Field(
        default=False,
        description="whether it was taken on the way to another density, so that a search to its "
        "own density would find another ticket",
    )
    on_collapse: CollapsePolicy = Field(
        default="error", description="what the search did about a collapsed layer"
    )
    data: Fingerprint | None = Field(
        default=None,
        exclude_if=lambda data: data is None,  # so that older tickets keep their digest
        description="the fingerprint of the data of the search or the fine-tuning",
    )
    prune_frozen: bool = Field(
        default=False,
        exclude_if=lambda pruned: not pruned,
        description="whether frozen weights (requires_grad=False) were pruned too",
    )
    tied: list[_Tie] | None = Field(
        default=None,
        exclude_if=lambda tied: tied is None,
        max_length=10_000,
        description="groups of state names that share one parameter, if known",
    )

    objective: Spec | None = Field(
        default=None,
        exclude_if=lambda objective: objective is None,
        description="what scores, search and fine-tuning minimize, as part data; cross-entropy "
        "otherwise",
    )
    metric: Name | None = Field(
        default=None,
        exclude_if=lambda metric: metric is None,
        description="what is measured, if not the metric of the objective",
    )

    def made_for(self) -> str:
        """Describe the network that the ticket was made for."""
        model = self.model or {}
        text = str(model.get("name") or model.get("custom") or "a model without a name")
        if "network" in model:
            text += f":{model['network']}"
        if self.shape is not None:
            kind = "images" if len(self.shape) == 3 else "inputs"
            text += f" for {'x'.join(str(size) for size in self.shape)} {kind}"
        if self.classes is not None:
            text += f" and {number_of(self.classes, 'class', 'classes')}"
        return escaped(text)


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
        keep their device, dtype and memory format. Nothing is written unless everything fits.
        """
        self.check_fit(model)
        own = model.state_dict(keep_vars=True)
        model.load_state_dict(effective(self.mask, self.state, own))
        return model

    def check_fit(self, model: nn.Module) -> None:
        """Raise `TicketError` unless names, shapes, types and tied weights fit the model."""
        flaws = misfits(self.mask, self.state, model.state_dict(keep_vars=True), self.info.tied)
        if flaws:
            raise TicketError(
                f"the ticket does not fit this {type(model).__name__}: it was made for "
                f"{self.info.made_for()}\n  - "
                + "\n  - ".join(flaws)
                + "\napply it to that network, before it is wrapped or compiled"
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
