"""Training and evaluation through Lightning Fabric: one code path from one CPU to many GPUs."""

import itertools
import math
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from gemkit.allocator import keep_memory
from gemkit.data.source import Source
from gemkit.errors import TrainingError
from gemkit.health import Health, diverged
from gemkit.masking import MaskedNet
from gemkit.optimizers import make_optimizer, set_lr
from gemkit.plan import Plan, Runtime
from gemkit.probe import Batch, in_mode
from gemkit.stateful import State, matching
from gemkit.tensors import Tensors
from gemkit.wording import number_of

_REMEMBERED = {
    "sgd": ("momentum_buffer",),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
}
"""What each optimizer keeps of a parameter that it has moved."""

# Fabric's own "64-true" hands logits back in float32; a double model under "32-true" stays double.
_PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed", "64": "32-true"}


def make_fabric(runtime: Runtime, *, start_processes: bool = False) -> Fabric:
    """Open the device the user asked for, or say that it is not there.

    Several devices need a process each. Starting them runs the program again from its beginning,
    which a library must not do unasked; processes that somebody else has started are joined.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(runtime.device, True):
        raise TrainingError(
            f"device '{runtime.device}' is not available here; use --device auto or --device cpu"
        )
    joins = "LOCAL_RANK" in os.environ  # processes that are there, and counted, already
    if not joins:
        _check_count(runtime, available)
    if runtime.devices > 1 and not start_processes and not joins:
        raise TrainingError(
            f"{runtime.devices} devices need as many processes: start your script with `torchrun "
            f"--nproc-per-node {runtime.devices} SCRIPT`, or use `gemkit run --devices "
            f"{runtime.devices}`, or pass a Fabric that you have launched as fabric="
        )
    fabric = Fabric(
        accelerator=runtime.device,
        devices=runtime.devices,
        precision=_PRECISIONS[runtime.precision],
    )
    fabric.launch()
    if fabric.device.type == "cpu":
        keep_memory()
    return fabric


def _check_count(runtime: Runtime, available: dict[str, bool]) -> None:
    """Refuse more devices than there are; processes on the CPU share its cores."""
    accelerators = (name for name, there in available.items() if there)
    device = next(accelerators, "cpu") if runtime.device == "auto" else runtime.device
    cores = os.cpu_count() or 1
    there = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": max(2, cores)}[device]
    if runtime.devices > there:
        has = {"cpu": number_of(cores, "core") + " for a process each"}
        raise TrainingError(
            f"{runtime.devices} devices of kind '{device}' are more than this machine has "
            f"({has.get(device, there)}); start a run with --devices {there} at most"
        )


def place(model: nn.Module, fabric: Fabric, runtime: Runtime) -> nn.Module:
    """Bring a model to the device, in the layout and number format of the run."""
    if runtime.precision == "64":
        model = model.double()
    return model.to(fabric.device).to(memory_format=layout_of(model, runtime))


def layout_of(model: nn.Module, runtime: Runtime) -> torch.memory_format:
    """Choose how images and kernels lie in memory.

    oneDNN writes out of bounds in the weight gradient of strided 1×1 convolutions that read few
    channels in the channels-last layout (uxlfoundation/oneDNN#6035); such networks stay contiguous.
    """
    dangerous = any(
        module.kernel_size == (1, 1) and max(module.stride) > 1 and module.in_channels < 16
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    )
    volumes = any(parameter.ndim == 5 for parameter in model.parameters())
    if runtime.channels_last and not dangerous and not volumes:
        return torch.channels_last
    return torch.contiguous_format


class Trainer:
    """Takes optimizer steps on a masked network and keeps its running loss on the device."""

    def __init__(self, net: MaskedNet, plan: Plan, fabric: Fabric, runtime: Runtime) -> None:
        self.net = net
        self.plan = plan
        self.fabric = fabric
        layout = layout_of(net.model, runtime)
        dtype = next(net.model.parameters()).dtype
        self._as_parameters = partial(Tensor.to, dtype=dtype, memory_format=layout)
        module = cast(nn.Module, torch.compile(net.model)) if runtime.compile else net.model
        self.module = fabric.setup_module(module, move_to_device=False)
        self.optimizer = make_optimizer(plan, net.trainable(), compiled=runtime.compile)
        if runtime.compile:
            net.compile_()
        self.loss = MeanMetric(nan_strategy="disable").to(fabric.device)
        self.number = 0
        alone = fabric.world_size == 1  # where one of several stopped, the others would wait
        self.health = Health(net, fabric.device, at_once=alone and fabric.device.type == "cpu")

    def step(self, batch: Batch, lr: float, number: int = 0) -> bool:
        """Take one step at the given learning rate, the `number`-th; tell whether it was taken.

        It is not where the loss is not finite and the plan says to leave such steps out. To know
        that takes waiting for the device in every step, and a copy of the model's buffers.
        """
        self.number = number
        set_lr(self.optimizer, lr)
        images, labels = batch
        images = self._as_parameters(images)
        skips = self.plan.on_nan == "skip"
        buffers = self._buffers() if skips else []
        loss = F.cross_entropy(self.module(images), labels)
        if self._is_finite(loss) if skips else self.health.watch(loss, number):
            self.fabric.backward(loss)
            self.net.step(self.optimizer)
            self.loss.update(loss.detach())
            return True
        if skips:
            self._undo(buffers, number, lr)
            return False
        raise self.health.explain(loss, number, images, lr)

    def _buffers(self) -> list[Tensor]:
        return [buffer.clone() for buffer in self.net.model.buffers()]

    def _is_finite(self, loss: Tensor) -> bool:
        """Tell whether the loss is finite, in all processes."""
        fine = self.fabric.all_reduce(loss.detach().isfinite().float(), reduce_op="mean")
        return bool(fine == 1)

    def _undo(self, buffers: list[Tensor], step: int, lr: float) -> None:
        """Bring back what the forward pass changed; if that does not help, nothing will."""
        for buffer, before in zip(self.net.model.buffers(), buffers, strict=True):
            buffer.copy_(before)
        self.health.check(step, lr)

    def state(self) -> State:
        """Return what the optimizer and the running loss remember; ill health is not saved."""
        self.health.check(self.number, self.plan.lr or 0.0)
        remembered = {
            str(number): self.optimizer.state[parameter]
            for number, parameter in enumerate(self.net.trainable())
            if self.optimizer.state.get(parameter)
        }
        return {"optimizer": remembered, "loss": self._running_loss()}

    def restore_(self, state: State) -> None:
        """Remember what a trainer did whose state this is."""
        trained = self.net.trainable()
        self.optimizer.state.clear()
        for number, remembered in state["optimizer"].items():
            parameter = trained[int(number)]
            like = {
                name: parameter.new_zeros((), dtype=torch.float32)
                if name == "step"
                else parameter.detach()
                for name in _REMEMBERED[self.plan.optimizer]
            }
            self.optimizer.state[parameter] = matching(remembered, like)
        for name, value in matching(state["loss"], self._running_loss()).items():
            setattr(self.loss, name, value)

    @torch.no_grad()
    def forget_(self) -> None:
        """Let the optimizer begin again; in place, because a compiled update knows its tensors."""
        for remembered in self.optimizer.state.values():
            for value in remembered.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def _running_loss(self) -> Tensors:
        return cast(Tensors, self.loss.metric_state)

    def mean_loss(self, step: int = 0) -> float:
        """Return the mean loss since last asked, or stop if training is in ill health by `step`."""
        lr = self.plan.lr or 0.0
        self.health.check(step, lr)
        if not self.loss.weight:
            raise diverged(step, "no step of a whole epoch had a finite loss", lr)
        mean = float(self.loss.compute())
        self.loss.reset()
        if not math.isfinite(mean):
            raise diverged(step, f"the mean loss is {mean}", lr)
        return mean


def endless(
    source: Source, size: int, *, seed: int, fabric: Fabric, start: int = 0
) -> Iterator[Batch]:
    """Yield augmented training batches for ever, each epoch in an order of its own.

    The first one is what comes after `start` batches, as if those had been drawn.
    Of several processes, each gets its share of every batch. A last batch too small to give every
    process two images, which batch statistics need, is left out.
    """
    world = fabric.world_size
    whole = max(1, source.steps(size) - (0 < len(source) % size < 2 * world))
    first, passed = divmod(start, whole)
    for epoch in itertools.count(first):
        shares = source.batches(
            size, seed=seed, epoch=epoch, augment=True, rank=fabric.global_rank, world=world
        )
        yield from itertools.islice(shares, passed if epoch == first else 0, whole)


@torch.no_grad()
def accuracy(module: nn.Module, source: Source, fabric: Fabric, classes: int) -> float:
    """Measure top-1 accuracy, un-augmented and in evaluation mode."""
    metric = MulticlassAccuracy(classes, average="micro", validate_args=False).to(fabric.device)
    dtype = next(module.parameters()).dtype
    finite = torch.ones((), dtype=torch.bool, device=fabric.device)
    with in_mode(module, training=False):
        for images, labels in source.batches(512, rank=fabric.global_rank, world=fabric.world_size):
            logits: Tensor = module(images.to(dtype))
            metric.update(logits, labels)
            finite &= logits.isfinite().all()
    if not finite:
        raise TrainingError("the network's outputs are not finite: training has diverged")
    return float(metric.compute())
