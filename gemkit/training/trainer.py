"""Training and evaluation through Lightning Fabric: one code path from one CPU to many GPUs."""

import math
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torchmetrics import MeanMetric

from gemkit.core.probe import IGNORED, Batch, unless_a_label
from gemkit.core.state import StateDict, checked_tensors
from gemkit.core.tensors import Tensors, is_index
from gemkit.parts.objective import CrossEntropy, Objective
from gemkit.training.checkpointer import rows
from gemkit.training.device import layout_of
from gemkit.training.loss_scale import LossScale
from gemkit.training.nan_guard import NanGuard, diverged
from gemkit.training.network import TrainedNet
from gemkit.training.optimizer_names import NATIVE
from gemkit.training.optimizer_state import load_state_, state_of
from gemkit.training.optimizers import can_compile, make_optimizer, set_lr
from gemkit.training.plan import Plan, Runtime


class Trainer:
    """Takes optimizer steps on a masked network and keeps its running loss on the device."""

    def __init__(
        self,
        net: TrainedNet,
        plan: Plan,
        fabric: Fabric,
        runtime: Runtime,
        objective: Objective | None = None,
    ) -> None:
        self.net = net
        self.plan = plan
        self.fabric = fabric
        self._layout = layout_of(net.model, runtime)
        self._dtype = next(net.model.parameters()).dtype
        module = cast(nn.Module, torch.compile(net.model)) if runtime.compile else net.model
        self.module = fabric.setup_module(module, move_to_device=False)
        self._compiled = runtime.compile and can_compile(plan) and net.compile_()
        self.optimizer = self._fresh_optimizer()
        self.objective = objective or CrossEntropy()
        weights = {name: own.detach() for name, own in net.model.named_parameters()}
        self._objective_state = self.objective.init_state(weights)
        self._scale = LossScale(fabric.device) if runtime.precision == "fp16" else None
        self.loss = MeanMetric(nan_strategy="disable").to(fabric.device)
        self.number = 0
        alone = fabric.world_size == 1  # one process must not stop alone
        self.nan_guard = NanGuard(net, fabric.device, at_once=alone and fabric.device.type == "cpu")

    def step(self, batch: Batch, lr: float, number: int = 0) -> bool:
        """Take one step at the given learning rate, the `number`-th; return whether it was taken.

        With `on_nan="skip"`, a step with a loss that is not finite is left out. That waits for the
        device in every step, and copies the model's buffers. A step that fp16 skips because its
        gradients overflow is only counted, see `skipped`.
        """
        self.number = number
        set_lr(self.optimizer, lr)
        images, labels = batch
        images = self._as_input(images)
        skips = self.plan.on_nan == "skip"
        before = [tensor.clone() for tensor in self._changing()] if skips else []
        loss = self._backward(images, labels)
        if self._is_finite(loss) if skips else self.nan_guard.watch(loss, number):
            self._update()
            self.loss.update(loss)
            return True
        if skips:
            self._undo(before, number, lr)
            return False
        raise self.nan_guard.explain(loss, number, images, lr)

    def _backward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute gradients, one part of the batch after the other; return the mean loss.

        Every part has at least two images, which batch statistics need. Processes average their
        gradients once, after the last part.
        """
        count = min(self.plan.accumulate, max(1, len(labels) // 2))
        if count == 1:
            return self._pass(images, labels)
        losses: list[Tensor] = []
        parts = zip(images.tensor_split(count), labels.tensor_split(count), strict=True)
        for number, (some, own) in enumerate(parts, start=1):
            with self.fabric.no_backward_sync(self.module, enabled=number < count):
                losses.append(self._pass(some, own, share=_counted(own) / _counted(labels)))
        return torch.stack(losses).sum()

    def _pass(self, images: Tensor, labels: Tensor, share: float | Tensor | None = None) -> Tensor:
        """Run a forward and a backward pass; return the loss, multiplied by `share`."""
        loss = self._loss(images, labels)
        if share is not None:
            loss = share * loss
        self.fabric.backward(loss if self._scale is None else self._scale.scaled(loss))
        return loss.detach()

    def _as_input(self, inputs: Tensor) -> Tensor:
        """Return inputs in the dtype of the network, and images in its memory layout."""
        dtype = inputs.dtype if is_index(inputs) else self._dtype
        layout = self._layout if inputs.ndim == 4 else torch.preserve_format
        return inputs.to(dtype=dtype, memory_format=layout)

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        outputs = self.module(images)
        now = replace(self.net.now, state=self._objective_state, dense=self._dense)
        try:
            return self.objective.loss(outputs, (images, labels), now)
        except IndexError as error:  # a stream does not know all its labels before
            raise unless_a_label(error, labels, outputs) from error

    def _dense(self, images: Tensor) -> Tensor:
        """Compute the outputs of the dense network, in the precision of training."""
        with self.fabric.autocast():
            return self.net.now.dense(images).to(self._dtype)

    def _update(self) -> None:
        """Take a step, unless scaled gradients overflow."""
        if self._scale is None or self._scale.unscale_(self.net.model):
            self.net.step(self.optimizer)
        else:
            self.net.model.zero_grad()
        if self._scale is not None:
            self._scale.update_()

    def _changing(self) -> list[Tensor]:
        """List the tensors that a forward pass and the loss may change."""
        return [*self.net.model.buffers(), *self._objective_state.values()]

    def _is_finite(self, loss: Tensor) -> bool:
        """Whether the loss is finite in all processes."""
        fine = self.fabric.all_reduce(loss.detach().isfinite().float(), reduce_op="mean")
        return bool(fine == 1)

    def _undo(self, before: list[Tensor], step: int, lr: float) -> None:
        """Drop the gradients and restore the buffers; raise if something else is not finite."""
        self.net.model.zero_grad()
        for tensor, old in zip(self._changing(), before, strict=True):
            tensor.copy_(old)
        self.nan_guard.check(step, lr)

    def state_dict(self) -> StateDict:
        """Return the state of the optimizer and the running loss; NaN and Inf are not saved."""
        self.nan_guard.check(self.number, self.plan.lr or 0.0)
        state: StateDict = {"optimizer": state_of(self.optimizer), "loss": self._running_loss()}
        if self._objective_state:
            state["objective"] = self._objective_state
            if self.fabric.world_size > 1:  # each process has its own batches
                own = self._objective_state.items()
                state["objective"] = {name: rows(value, self.fabric) for name, value in own}
        if self._scale is not None:
            state["loss_scale"] = self._scale.state_dict()
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state."""
        self.optimizer = self._fresh_optimizer()
        load_state_(self.optimizer, state["optimizer"], partial(make_optimizer, self.plan))
        saved = state.get("objective", {})
        if self.fabric.world_size > 1:
            saved = {name: self._own_row(name, value) for name, value in saved.items()}
        for name, value in checked_tensors(saved, self._objective_state).items():
            self._objective_state[name].copy_(value)
        if self._scale is not None:
            self._scale.load_state_dict(state["loss_scale"])
        for name, value in checked_tensors(state["loss"], self._running_loss()).items():
            setattr(self.loss, name, value)

    def _own_row(self, name: str, saved: Tensor) -> Tensor:
        """Return this process's state; older files have one state for all processes."""
        own = self._objective_state.get(name)
        if own is not None and saved.shape == own.shape:
            return saved
        return saved[self.fabric.global_rank]

    @torch.no_grad()
    def reset_optimizer_(self) -> None:
        """Reset the optimizer; in place if possible: a compiled update holds its tensors."""
        damped = "dampening" in self.plan.optimizer_options  # the first step is not damped
        if self.plan.optimizer not in NATIVE or damped:  # zeros may not be their initial state
            self.optimizer = self._fresh_optimizer()
            return
        for remembered in self.optimizer.state.values():
            for value in remembered.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.plan, self.net.groups(self.plan), compiled=self._compiled)

    def _running_loss(self) -> Tensors:
        return cast(Tensors, self.loss.metric_state)

    def mean_loss(self, step: int = 0) -> float:
        """Return the mean loss since the last call; raise if there is a NaN or Inf by `step`."""
        lr = self.plan.lr or 0.0
        self.nan_guard.check(step, lr)
        if not self.loss.weight:
            raise diverged(step, "no step of a whole epoch had a finite loss", lr)
        if self._scale is not None and self._scale.is_stuck(int(self.loss.weight)):
            raise diverged(step, "no step of a whole epoch had finite gradients in fp16", lr)
        mean = float(self.loss.compute())
        self.loss.reset()
        if not math.isfinite(mean):
            raise diverged(step, f"the mean loss is {mean}", lr)
        return mean

    def skipped(self) -> int:
        """Return how many steps fp16 skipped since the last call."""
        if self._scale is None:
            return 0
        count = int(self._scale.skipped)
        self._scale.skipped.zero_()
        return count


def _counted(targets: Tensor) -> int | Tensor:
    """Return the number of targets that the loss is a mean of, at least 1: of a map, its places."""
    if targets.dtype != torch.int64 or targets.ndim == 1:
        return len(targets)
    return (targets != IGNORED).sum().clamp(min=1)
