"""Hold a mask in any training loop, with hooks of the optimizer.

torch calls hooks before and after the step of every optimizer. Before a step, the gradients of
pruned weights become zero; after it, the weights. Both are one multiplication for all layers,
whatever their number: of the bits, as integers, because 0 · NaN is not zero.

A model may replace its parameters (`load_state_dict(assign=True)`), and an optimizer its lists, so
every step compares what they have with what was found before, by identity.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gemkit.core.errors import TicketError, some
from gemkit.core.tensors import Tensors, aligned
from gemkit.core.warn import warn_user
from gemkit.models.check import check_model, unwrapped

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers with as many bytes as a number."""


def _bits(tensor: Tensor) -> Tensor:
    """Return the bits of numbers as integers, in the same memory."""
    return tensor.detach().view(_INTEGERS[tensor.element_size()])


class _Layer(NamedTuple):
    """A parameter, and its mask as booleans."""

    parameter: nn.Parameter
    kept: Tensor


class _Group(NamedTuple):
    """Weights of one dtype and device, their bits, and their masks as integers."""

    parameters: list[nn.Parameter]
    weights: list[Tensor]
    masks: list[Tensor]


class _Layers:
    """Masked weights, with what is needed to mask them at once."""

    def __init__(self, layers: Sequence[_Layer]) -> None:
        self.layers = layers
        self._places: list[int] = []
        self._groups: list[_Group] = []

    def mask_weights_(self) -> None:
        """Zero the pruned weights."""
        for group in self._current():
            torch._foreach_mul_(group.weights, group.masks)

    def mask_gradients_(self) -> None:
        """Zero the gradients of pruned weights."""
        for group in self._current():
            gradients: list[Tensor] = []
            masks: list[Tensor] = []
            for parameter, mask in zip(group.parameters, group.masks, strict=True):
                own = parameter.grad
                if own is None or own.layout is not torch.strided:
                    continue  # after the step, the weight itself becomes zero
                if own.dtype == parameter.dtype:
                    gradients.append(_bits(own))
                    masks.append(mask)
                else:
                    own.masked_fill_(mask == 0, 0)
            if gradients:
                torch._foreach_mul_(gradients, masks)

    def _current(self) -> list[_Group]:
        """Return the lists; make them again if a parameter has moved or changed its dtype."""
        places = [parameter.data_ptr() for parameter, _ in self.layers]
        if places != self._places:
            found: dict[object, _Group] = {}
            for parameter, kept in self.layers:
                own = parameter.detach()
                group = found.setdefault((own.dtype, own.device), _Group([], [], []))
                mask = kept.to(own.device, _INTEGERS[own.element_size()])
                group.parameters.append(parameter)
                group.weights.append(_bits(own))
                group.masks.append(aligned(mask, own))
            self._groups, self._places = list(found.values()), places
        return self._groups


@dataclass(slots=True)
class _Place:
    """A name of a masked weight: the modules on the way to it, and what was found there."""

    modules: list[str]
    own: str
    kept: Tensor
    found: nn.Parameter | None
    held: nn.Parameter | None
    """The parameter to mask; not `found` if that cannot be masked."""

    def parameter(self, model: nn.Module) -> nn.Parameter | None:
        """Return the parameter that the model has there now."""
        module: nn.Module | None = model
        for name in self.modules:
            module = module._modules.get(name) if module is not None else None
        return module._parameters.get(self.own) if module is not None else None


class _Places:
    """The names of masked weights in a model, also the further names of tied weights."""

    def __init__(self, mask: Tensors, model: nn.Module) -> None:
        matched = _matched(mask, model).values()
        masks = {id(own): kept for own, kept in matched if not bool(kept.all())}
        self._model = weakref.ref(model)
        self._places: list[_Place] = []
        for name, own in model.named_parameters(remove_duplicate=False):
            if id(own) in masks:
                *modules, last = name.split(".")
                self._places.append(_Place(modules, last, masks[id(own)], own, own))

    def layers(self) -> list[_Layer]:
        """Return every masked weight once."""
        held = {
            id(one.held): _Layer(one.held, one.kept) for one in self._places if one.held is not None
        }
        return list(held.values())

    def update(self) -> bool:
        """Find parameters that the model has replaced; return whether there are any."""
        model = self._model()
        if model is None or all(one.parameter(model) is one.found for one in self._places):
            return False
        present = {id(own) for own in model.parameters()}
        lost: list[str] = []
        for one in self._places:
            one.found = own = one.parameter(model)
            if own is not None and own.shape == one.kept.shape and not hasattr(own, "placements"):
                one.held = own
            elif one.held is not None and id(one.held) not in present:  # not under another name
                one.held = None
                lost.append(".".join([*one.modules, one.own]))
        if lost:
            warn_user(
                f"{type(model).__name__} has other weights now, which the mask does not fit, so "
                f"these are no longer held: {some(lost)}"
            )
        return True


@final
class Hold:
    """Keeps pruned weights at exactly zero after every optimizer step; see `Ticket.hold`.

    Their gradients are zeroed before the step, and their optimizer state is cleared.
    The model stays an ordinary module: copies of it, and averages, are not held.
    """

    def __init__(self, mask: Tensors, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        self._mask = mask
        self._places = _Places(mask, check_model(model))
        self._all = _Layers(self._places.layers())
        self._known: weakref.WeakKeyDictionary[Optimizer, tuple[list[int], _Layers]] = (
            weakref.WeakKeyDictionary()
        )
        self._hooked: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        if optimizer is not None and not self._trained_by(_ids(optimizer)).layers:
            raise TicketError(
                f"this {type(optimizer).__name__} trains none of the weights that the ticket "
                "masks; make it of the parameters of this model, after the model is moved or cast"
            )
        self._all.mask_weights_()
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        if optimizer is not None:
            self._layers_of(optimizer)
        self._end = weakref.finalize(model, self.remove)  # hooks would outlive the model
        self._end.atexit = False

    def mask_gradients_(self) -> None:
        """Zero the gradients of pruned weights now, before gradients are clipped by their norm."""
        self._update()
        self._all.mask_gradients_()

    def mask_(self, model: nn.Module) -> None:
        """Zero the pruned weights of another model, such as an average that was begun before."""
        layers = list(_matched(self._mask, unwrapped(model)).values())
        _Layers(layers).mask_weights_()

    def remove(self) -> None:
        """Remove the hooks: later steps may change pruned weights."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._end.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _update(self) -> None:
        """Follow a model that has replaced parameters."""
        if self._places.update():
            self._all = _Layers(self._places.layers())
            self._known.clear()

    def _trained_by(self, ids: list[int]) -> _Layers:
        """Return the masked weights among the parameters with these ids."""
        own = set(ids)
        layers = [layer for layer in self._all.layers if id(layer.parameter) in own]
        return self._all if len(layers) == len(self._all.layers) else _Layers(layers)

    def _layers_of(self, optimizer: Optimizer) -> _Layers:
        """Return the masked weights of an optimizer; clear the state of pruned ones at first."""
        self._update()
        ids = _ids(optimizer)
        known, layers = self._known.get(optimizer, (None, self._all))
        if known != ids:
            layers = self._trained_by(ids)
            self._known[optimizer] = ids, layers
            if layers.layers and optimizer not in self._hooked:
                self._hooked.add(optimizer)
                self._handles.append(optimizer.register_load_state_dict_post_hook(self._clear))
            self._clear(optimizer)
        return layers

    def _clear(self, optimizer: Optimizer) -> None:
        """Zero the optimizer state of pruned weights."""
        for parameter, kept in self._layers_of(optimizer).layers:
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.masked_fill_(~kept.to(value.device), 0)

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Zero gradients before a step, or after the closure that computes them."""
        layers = self._layers_of(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not layers.layers or closure is None:
            layers.mask_gradients_()
            return None

        def masked() -> Any:  # noqa: ANN401 - whatever the closure returns
            loss = closure()
            layers.mask_gradients_()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": masked}
        return (args[0], masked, *args[2:]), kwargs

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Zero the weights after a step, whatever the optimizer did."""
        self._layers_of(optimizer).mask_weights_()


def _ids(optimizer: Optimizer) -> list[int]:
    """Return the identities of an optimizer's parameters."""
    return [id(own) for group in optimizer.param_groups for own in group["params"]]


def _matched(mask: Tensors, model: nn.Module) -> dict[str, _Layer]:
    """Pair masks with the parameters of a model; refuse other names and shapes."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    flaws = [
        name
        for name, kept in mask.items()
        if name not in parameters or parameters[name].shape != kept.shape
    ]
    if flaws:
        raise TicketError(
            f"{type(model).__name__} has no parameters of these names and shapes: {some(flaws)}; "
            "hold the mask in the network that the ticket was made for"
        )
    return {name: _Layer(parameters[name], kept) for name, kept in mask.items()}
