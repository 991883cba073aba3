"""How to train: plain data for the hyper-parameters of a phase, and for the machine it runs on."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gemkit.errors import OptionError
from gemkit.limits import MOST_EPOCHS


class Plan(BaseModel):
    """How one phase trains; what is left out takes the default for what is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    epochs: int = Field(
        default=30, ge=0, le=MOST_EPOCHS, description="passes over the training data"
    )
    batch_size: int = Field(default=64, ge=1, lt=2**31, description="images per optimizer step")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(default="sgd", description="update rule")
    lr: float | None = Field(default=None, gt=0, description="peak learning rate")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of SGD; Adam's first beta")
    nesterov: bool = Field(default=False, description="SGD looks ahead")
    weight_decay: float | None = Field(
        default=None, ge=0, description="on whatever is trained; its default depends on that"
    )
    lr_schedule: Literal["cosine", "multistep", "constant"] = Field(
        default="cosine", description="how the learning rate falls, epoch by epoch"
    )
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(0.5, 0.75),
        max_length=1000,
        description="multistep: divide by 10 at these fractions of the epochs",
    )
    on_nan: Literal["stop", "skip"] = Field(
        default="stop", description="when the loss is not finite: stop, or leave that step out"
    )
    warmup_epochs: int = Field(
        default=0, ge=0, le=MOST_EPOCHS, description="rise linearly over these epochs"
    )
    on_no_signal: Literal["error", "warn"] = Field(
        default="error",
        exclude_if=lambda policy: policy == "error",  # so that older files say the same
        description="when a search begins with layers that get no gradient, and its scores depend "
        "on it: stop, or warn",
    )
    allow_ties: bool = Field(
        default=False,
        exclude_if=lambda allowed: not allowed,
        description="prune layers whose weights are all equally important, by position",
    )

    select: Literal["last", "best"] = Field(
        default="last",
        exclude_if=lambda which: which == "last",  # so that older files say the same
        description="which network fine-tuning keeps: that of its last epoch, or of the epoch with "
        "the best validation accuracy",
    )

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of a step; it depends on nothing but the clock."""
        if self.lr is None:
            raise ValueError("the plan leaves the learning rate open; decide it with decided()")
        return self.lr * self._factor(step, steps_per_epoch)

    def _factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the fraction of the peak."""
        epoch = step // steps_per_epoch
        warmup_steps = self.warmup_epochs * steps_per_epoch
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        if self.lr_schedule == "constant":
            return 1.0
        if self.lr_schedule == "multistep":
            passed = sum(epoch >= part * self.epochs for part in self.milestones)
            return float(0.1**passed)
        left = max(1, self.epochs - self.warmup_epochs)
        return 0.5 * (1 + math.cos(math.pi * (epoch - self.warmup_epochs) / left))

    def lasting(self, epochs: int | None) -> "Plan":
        """Return the plan with other epochs, if any are given."""
        return (
            self if epochs is None else Plan.model_validate(self.model_dump() | {"epochs": epochs})
        )

    def decided(self, *, lr: float, weight_decay: float) -> "Plan":
        """Return the plan with these values where it leaves them open."""
        defaults = {"lr": lr, "weight_decay": weight_decay}
        own = self.model_dump(exclude_none=True)
        return self.model_copy(
            update={name: value for name, value in defaults.items() if name not in own}
        )


class Runtime(BaseModel):
    """The machine: where to compute and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description="auto takes the accelerator where there is one"
    )
    devices: int = Field(default=1, ge=1, description="how many of them share every batch")
    precision: Literal["32", "bf16", "64"] = Field(
        default="32", description="bf16 computes in mixed precision; scores stay in float32"
    )
    compile: bool = Field(
        default=False, description="compile the network and the update with torch.compile"
    )
    compact: bool = Field(
        default=False, description="fine-tune without the channels that a ticket has no use for"
    )
    channels_last: bool = Field(
        default=True, description="lay images out as CPUs and tensor cores like convolutions best"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_lean(cls, data: object) -> object:
        """Refuse a setting that no longer exists, unless it is off."""
        if isinstance(data, dict) and "lean" in data:
            if data["lean"]:
                raise OptionError(
                    "lean searches were removed (docs/decisions/0013-one-update.md says why); "
                    "leave out --lean (in Python, lean=True): the ticket is the same"
                )
            return {name: value for name, value in data.items() if name != "lean"}
        return data
