"""How to train: the hyper-parameters of a phase, and the machine it runs on, as plain data."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from gemkit.core.bounded import Spec
from gemkit.core.errors import OptionError, did_you_mean
from gemkit.core.limits import MAX_EPOCHS, MAX_NAME_LENGTH
from gemkit.core.text import CUSTOM, text_of
from gemkit.training.optimizer_names import NATIVE, check_name

CollapsePolicy = Literal["error", "warn", "keep-one"]
"""What to do when a layer loses every weight, or the output no longer depends on the input."""

SCHEDULES = ("cosine", "linear", "multistep", "constant")
NOT_OPTIONS = {"lr", "weight_decay", "momentum", "nesterov", "fused", "foreach", "capturable"}
"""Settings of optimizers that are fields of a plan, or that gemkit decides."""


class Plan(BaseModel):
    """How one phase trains; defaults depend on what is trained.

    From Python, `optimizer` may also be a function of parameter groups that takes `lr` and
    `weight_decay`, such as `torch.optim.RMSprop`, and `lr_schedule` one from the progress after
    warm-up, 0 to 1, to the fraction of the peak. Files name such a function and never call it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    epochs: int = Field(
        default=30, ge=0, le=MAX_EPOCHS, description="passes over the training data"
    )
    batch_size: int = Field(default=64, ge=1, lt=2**31, description="images per optimizer step")
    optimizer: str | Callable[..., Any] = Field(
        default="sgd", description="update rule: sgd, adam, adamw, lion or others (docs/runs.md)"
    )
    optimizer_options: Spec = Field(
        default={},
        exclude_if=lambda options: not options,  # so that older files say the same
        description="further settings of the optimizer, such as {eps = 1e-6}",
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        validate_default=True,
        description="peak learning rate; has a default for sgd, adam and adamw",
    )
    score_lr: float | None = Field(
        default=None,
        gt=0,
        exclude_if=lambda lr: lr is None,
        description="peak learning rate of scores that are trained together with weights",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of SGD; Adam's first beta")
    nesterov: bool = Field(default=False, description="SGD looks ahead")
    weight_decay: float | None = Field(
        default=None, ge=0, description="on whatever is trained; its default depends on that"
    )
    lr_schedule: str | Callable[[float], float] = Field(
        default="cosine",
        description="how the learning rate falls, epoch by epoch: cosine, linear, multistep or "
        "constant",
    )
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(0.5, 0.75),
        max_length=1000,
        description="multistep: divide by 10 at these fractions of the epochs",
    )
    clip_grad: float | None = Field(
        default=None,
        gt=0,
        exclude_if=lambda most: most is None,
        description="scale the gradients of a step down to this norm, taken over all of them",
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        lt=2**31,
        exclude_if=lambda parts: parts == 1,
        description="parts that a batch is computed in, one after the other, to save memory",
    )
    on_nan: Literal["stop", "skip"] = Field(
        default="stop", description="when the loss is not finite: stop, or leave that step out"
    )
    warmup_epochs: int = Field(
        default=0, ge=0, le=MAX_EPOCHS, description="rise linearly over these epochs"
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
        "the best validation accuracy or other metric",
    )

    @field_validator("optimizer", mode="before")
    @classmethod
    def _known_optimizer(cls, value: object) -> object:
        """Refuse an optimizer that is unknown or does not fit."""
        if _is_name(value):
            check_name(value)
        return value

    @field_validator("optimizer_options")
    @classmethod
    def _options_of_a_name(cls, options: Spec, info: ValidationInfo) -> Spec:
        """Refuse options where they would have no effect."""
        if options and not isinstance(info.data.get("optimizer", ""), str):
            raise ValueError("the optimizer is a function; set its options there")
        if decided := NOT_OPTIONS & options.keys():
            names = ", ".join(sorted(decided))
            raise ValueError(f"{names}: set by the field of that name, if there is one")
        return options

    @field_validator("lr_schedule", mode="before")
    @classmethod
    def _known_schedule(cls, value: object) -> object:
        """Refuse an unknown schedule."""
        if _is_name(value) and value not in SCHEDULES:
            raise ValueError(f"there is no such schedule{did_you_mean(value, SCHEDULES)}")
        return value

    @field_validator("lr")
    @classmethod
    def _lr_where_there_is_no_default(cls, lr: float | None, info: ValidationInfo) -> float | None:
        """Require a learning rate for optimizers without a default."""
        optimizer = info.data.get("optimizer", "sgd")
        if lr is None and optimizer not in NATIVE:
            raise ValueError(f"there is no default for optimizer {text_of(optimizer)!r}; set it")
        return lr

    @field_serializer("optimizer", "lr_schedule", when_used="json")
    def _as_text(self, value: str | Callable[..., Any]) -> str:
        return text_of(value)

    def check_functions(self) -> None:
        """Refuse a plan from a file that only names a function."""
        for field in ("optimizer", "lr_schedule"):
            value = getattr(self, field)
            if isinstance(value, str) and value.startswith(CUSTOM):
                raise OptionError(
                    f"{field} = {value!r} names a function, and a file alone runs no code; run "
                    f"again from Python with the function itself, Plan({field}=...)"
                )

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of a step; it depends only on the clock."""
        self.check_functions()
        if self.lr is None:
            raise ValueError("the plan leaves the learning rate open; decide it with decided()")
        return self.lr * self._factor(step, steps_per_epoch)

    def _factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the fraction of the peak."""
        epoch = step // steps_per_epoch
        warmup_steps = self.warmup_epochs * steps_per_epoch
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        left = max(1, self.epochs - self.warmup_epochs)
        if not isinstance(self.lr_schedule, str):
            return _checked(self.lr_schedule, (step - warmup_steps) / (left * steps_per_epoch))
        if self.lr_schedule == "constant":
            return 1.0
        if self.lr_schedule == "multistep":
            passed = sum(epoch >= part * self.epochs for part in self.milestones)
            return float(0.1**passed)
        progress = (epoch - self.warmup_epochs) / left
        if self.lr_schedule == "linear":
            return 1 - progress
        return 0.5 * (1 + math.cos(math.pi * (epoch - self.warmup_epochs) / left))

    def lasting(self, epochs: int | None) -> "Plan":
        """Return the plan with other epochs, if any are given."""
        return (
            self if epochs is None else Plan.model_validate(self.model_dump() | {"epochs": epochs})
        )

    def decided(self, *, lr: float, weight_decay: float, score_lr: float | None = None) -> "Plan":
        """Return the plan with these values for fields that are not set."""
        self.check_functions()
        defaults = {"lr": lr, "weight_decay": weight_decay, "score_lr": score_lr}
        own = self.model_dump(exclude_none=True)
        return self.model_copy(
            update={name: value for name, value in defaults.items() if name not in own}
        )


def _is_name(value: object) -> TypeGuard[str]:
    """Whether a value is a name; refuse what is neither a name nor a function."""
    if isinstance(value, str) and len(value) <= MAX_NAME_LENGTH:
        return not value.startswith(CUSTOM)
    if not callable(value):
        raise ValueError("give a name or, from Python, a function")
    return False


def _checked(schedule: Callable[[float], float], progress: float) -> float:
    """Call a schedule; refuse anything but a fraction of the peak."""
    factor = schedule(min(1.0, progress))
    if not isinstance(factor, Real) or not 0 <= factor < math.inf:
        raise OptionError(
            f"lr_schedule {text_of(schedule)!r} returns {factor!r} at progress {progress:g}; it "
            "must return a fraction of the peak, a number from 0 up"
        )
    return float(factor)


class Runtime(BaseModel):
    """The machine: where to compute and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description="auto takes the accelerator if there is one"
    )
    devices: int = Field(default=1, ge=1, description="how many of them share every batch")
    precision: Literal["32", "bf16", "fp16", "64"] = Field(
        default="32",
        description="bf16 and fp16 compute in mixed precision, fp16 with a scaled loss; scores and "
        "weights stay in float32",
    )
    compile: bool = Field(
        default=False, description="compile the network and the update with torch.compile"
    )
    compact: bool = Field(
        default=False, description="fine-tune without the channels that a ticket has no use for"
    )
    channels_last: bool = Field(
        default=True,
        description="use the memory layout that is fastest for convolutions on CPUs and GPUs",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        exclude_if=lambda threads: threads is None,  # so that older files say the same
        description="threads of a run on the CPU, which change its last bits; unset: torch's own",
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
