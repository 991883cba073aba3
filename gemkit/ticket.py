"""The ticket: which weights are kept, where all of them begin, and how that was found."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from torch import Tensor, nn

from gemkit import ticket_file
from gemkit.bounded import Classes, Count, Density, ImageShape, Name, Seed, Spec
from gemkit.collapse import CollapsePolicy
from gemkit.data.fingerprint import Fingerprint
from gemkit.errors import TicketError, some
from gemkit.limits import MOST_FREEZES
from gemkit.plan import Plan
from gemkit.tensors import Tensors, kept, total
from gemkit.ticket_file import DTYPES, REPLACE_IT, Content, explain
from gemkit.ticket_fit import effective, misfits
from gemkit.wording import escaped, number_of

Model = TypeVar("Model", bound=nn.Module)
_Tie = Annotated[list[Annotated[str, Field(max_length=512)]], Field(min_length=2, max_length=1_000)]
_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FreezeRecord(BaseModel):
    """One freeze of the search that found the ticket."""

    model_config = _STRICT

    step: Count = Field(description="the optimizer step before which it happened")
    target: Density = Field(description="the density it aimed at")
    alive: Count = Field(description="how many weights could still be used after it")
    kept: Count = Field(description="how many weights the mask kept after it")


class TicketInfo(BaseModel):
    """Where a ticket comes from: everything needed to search, build and report it again."""

    model_config = _STRICT

    pruner: Name = Field(description="the name of the pruner that found it")
    recipe: Spec = Field(description="the resolved recipe, as Recipe.to_data()")
    model: Spec | None = Field(
        description="the network as part data, or {'custom': 'package.module:function'}"
    )
    dataset: Spec | None = Field(description="the data set as part data")
    shape: ImageShape | None = Field(
        description="the (channels, height, width) of the images the network was built for"
    )
    classes: Classes | None = Field(description="the classes the network was built for")
    density_target: Density = Field(description="the fraction it was asked to keep")
    seed: Seed = Field(description="the seed of the search")
    epochs: Count = Field(description="how many epochs the search trained")
    stage: Literal["found", "finetuned"] = Field(
        description="'found' by a search, or taken from a network that was 'finetuned' since"
    )
    plan: Plan | None = Field(
        default=None, description="how the search trained, with every default written out"
    )
    versions: dict[Name, Name] = Field(
        max_length=1000, description="versions of gemkit, torch and every plugin used"
    )
    history: list[FreezeRecord] = Field(
        max_length=MOST_FREEZES, description="every freeze of the search, in order"
    )
    alive: Count | None = Field(
        default=None,
        description="how many weights were still alive when the mask was chosen, which differs "
        "from those it keeps where scores are rounded",
    )
    partway: bool = Field(
        default=False,
        description="whether it was taken out of a search on its way elsewhere, so that a search "
        "to its density would not find it again",
    )
    on_collapse: CollapsePolicy = Field(
        default="error", description="what the search was told to do about a lost layer"
    )
    data: Fingerprint | None = Field(
        default=None,
        exclude_if=lambda data: data is None,  # so that older tickets keep their digest
        description="the fingerprint of the data it was found on, or trained on since",
    )
    prune_frozen: bool = Field(
        default=False,
        exclude_if=lambda pruned: not pruned,
        description="whether frozen weights (requires_grad=False) were pruned, too",
    )
    tied: list[_Tie] | None = Field(
        default=None,
        exclude_if=lambda tied: tied is None,
        max_length=10_000,
        description="the names in the state of every parameter that has several, where known",
    )

    def made_for(self) -> str:
        """Say which network the ticket was made for."""
        model = self.model or {}
        text = str(model.get("name") or model.get("custom") or "a model without a name")
        if "network" in model:
            text += f":{model['network']}"
        if self.shape is not None:
            text += f" for {'x'.join(str(size) for size in self.shape)} images"
        if self.classes is not None:
            text += f" and {number_of(self.classes, 'class', 'classes')}"
        return escaped(text)


class Layer(NamedTuple):
    """One prunable weight: its name and shape, and how many of its entries are kept."""

    name: str
    shape: tuple[int, ...]
    kept: int
    prunable: int


@dataclass(frozen=True, eq=False, repr=False)
class Ticket:
    """A mask, the starting weights it belongs to, and where both come from.

    `mask` has one boolean tensor per prunable parameter, in module order. `state` is the whole
    state_dict at the start of fine-tuning; its prunable weights are *not* masked, because controls
    such as a shuffled mask need the others too. Both are copies on the CPU, so a ticket does not
    change when the model it was taken from goes on training. Equal tickets have equal digests.
    """

    mask: Tensors
    state: Tensors
    info: TicketInfo

    def __post_init__(self) -> None:
        flaws = _flaws(self.mask, self.state)
        if flaws:
            raise TicketError("these tensors are no ticket: " + "; ".join(flaws))
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
        """How many weights the mask keeps."""
        return kept(self.mask)

    @property
    def prunable(self) -> int:
        """How many weights the mask decides on."""
        return total(self.mask)

    @property
    def density(self) -> float:
        """The fraction of prunable weights that is kept, counted, not aimed at."""
        return self.kept / self.prunable

    @property
    def layers(self) -> list[Layer]:
        """What is kept of every prunable weight, in module order."""
        return [
            Layer(name, tuple(mask.shape), int(mask.count_nonzero()), mask.numel())
            for name, mask in self.mask.items()
        ]

    def summary(self) -> str:
        """Say in one line what this ticket is."""
        return (
            f"{escaped(self.info.pruner)} ticket for {self.info.made_for()}: keeps {self.kept:,} "
            f"of {self.prunable:,} weights (density {self.density:.4g}, target "
            f"{self.info.density_target:g}), {self.info.stage}, seed {self.info.seed}"
        )

    def with_info(self, **facts: object) -> Ticket:
        """Return the same ticket with other facts about where it comes from."""
        return replace(self, info=self.info.model_copy(update=facts))

    def digest(self) -> str:
        """Return the SHA-256 of everything in the ticket, the one its file carries."""
        return ticket_file.digest(self._content())

    def apply(self, model: Model) -> Model:
        """Put the kept weights and the rest of the state into a model, in place, and return it.

        The model is an ordinary one with the names and shapes the ticket was made for; its tensors
        keep their device, dtype and memory format. It shares the same weights between layers.
        Nothing is written unless everything fits.
        """
        self.check_fit(model)
        own = model.state_dict(keep_vars=True)
        model.load_state_dict(effective(self.mask, self.state, own))
        return model

    def check_fit(self, model: nn.Module) -> None:
        """Raise what keeps a model from taking this ticket: names, shapes, types, tied weights."""
        flaws = misfits(self.mask, self.state, model.state_dict(keep_vars=True), self.info.tied)
        if flaws:
            raise TicketError(
                f"the ticket does not fit this {type(model).__name__}: it was made for "
                f"{self.info.made_for()}\n  - "
                + "\n  - ".join(flaws)
                + "\napply it to that network, not yet wrapped or compiled"
            )

    def save(self, path: str | os.PathLike[str], *, within: Path | None = None) -> None:
        """Write one safetensors file, whole or not at all; the same ticket gives the same bytes.

        `within` is a folder below which no link is followed; see `gemkit.files`.
        """
        content = self._content()
        try:
            _read_info(content.info)
        except ValueError as error:  # rather now than when somebody needs the file
            raise TicketError(
                f"cannot save as {path}: `info` would not read back: {error}"
            ) from error
        ticket_file.write(content, Path(path), within=within)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, within: Path | None = None) -> Ticket:
        """Read a ticket file, trusting nothing in it; see `gemkit.ticket_file`.

        `within` is a folder below which no link is followed; see `gemkit.files`.
        """
        content = ticket_file.read(Path(path), within=within)
        if "compact" in content.info:
            raise TicketError(
                f"{path} is a compact network, not a ticket: give the ticket it was made of, or "
                "read it with gemkit.compaction.load_compact"
            )
        try:
            return cls(content.mask, content.state, _read_info(content.info))
        except ValidationError as error:
            raise TicketError(
                f"{path} is no sound ticket: its info does not fit this version of gemkit "
                f"({explain(error)}); install the gemkit that wrote it, or search again"
            ) from error
        except TicketError as flaw:
            raise TicketError(f"{path} is no sound ticket: {flaw}; {REPLACE_IT}") from flaw

    @classmethod
    def verify(cls, path: str | os.PathLike[str]) -> str:
        """Check a ticket file as `load` does and return its summary."""
        return cls.load(path).summary()

    def _content(self) -> Content:
        """Return what goes into the file."""
        return Content(self.mask, self.state, self.info.model_dump(mode="json"))


def _read_info(data: dict[str, JsonValue]) -> TicketInfo:
    """Validate info as JSON, where a list may stand for a tuple."""
    return TicketInfo.model_validate_json(json.dumps(data, allow_nan=False))


def _own(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU, apart from every other, in C order."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _flaws(mask: Tensors, state: Tensors) -> list[str]:
    """Say everything that keeps these tensors from being a ticket."""
    everything = [*state.items(), *mask.items()]
    alien = [name for name, tensor in everything if not _storable(tensor)]
    if alien:
        return [f"only dense tensors of ordinary types with values can be kept, not {some(alien)}"]
    lost = [name for name in mask if name not in state]
    bent = [name for name in mask if name in state and mask[name].shape != state[name].shape]
    soft = [name for name in mask if mask[name].dtype != torch.bool]
    found = [
        ("masks without weights in the state", lost),
        ("masks of another shape than their weights", bent),
        ("masks that are not boolean", soft),
    ]
    flaws = [f"{what}: {some(names)}" for what, names in found if names]
    return flaws if total(mask) else [*flaws, "the mask has no entries"]


def _storable(tensor: object) -> bool:
    """Say whether safetensors could write it: a dense tensor with values, of a known type."""
    return (
        isinstance(tensor, Tensor)
        and tensor.dtype in DTYPES
        and tensor.layout is torch.strided
        and not tensor.is_meta
    )
