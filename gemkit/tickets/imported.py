"""Masks that were found elsewhere: given by name, or read from a pruned model."""

from collections.abc import Mapping
from importlib.metadata import version

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from gemkit.core.errors import TicketError, did_you_mean, some
from gemkit.core.prunable import (
    KINDS,
    ON_REQUEST,
    candidates,
    kind_of,
    prunable_names,
    refuse_recomputed,
)
from gemkit.core.tensor_file import explain
from gemkit.core.tensors import Tensors, kept, total
from gemkit.core.warn import warn_user
from gemkit.tickets.apply import ties_of
from gemkit.tickets.info import TicketInfo

_ORIGINAL, _MASK = "_orig", "_mask"
"""How `torch.nn.utils.prune` names the weight and the mask of a parameter."""


def external_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> Tensors:
    """Return these masks as booleans, in module order, a tied weight under its first name."""
    if not isinstance(masks, Mapping):
        raise TicketError(
            f"masks must be a dict of tensors by parameter name, not {type(masks).__name__}"
        )
    known = prunable_names(model, kinds=(*KINDS, *ON_REQUEST), frozen=True)
    names = {id(model.get_parameter(name)): name for name in known}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found: Tensors = {}
    origin: dict[str, str] = {}
    for given, mask in masks.items():
        if given not in parameters or id(parameters[given]) not in names:
            raise TicketError(
                f"mask {given!r} belongs to no weight of {type(model).__name__} that gemkit can "
                f"prune, which are those of kind {', '.join((*KINDS, *ON_REQUEST))}"
                + did_you_mean(given, known)
            )
        name = names[id(parameters[given])]
        own = _boolean(given, mask, parameters[given])
        origin.setdefault(name, given)
        if not torch.equal(found.setdefault(name, own), own):
            raise TicketError(
                f"masks {origin[name]!r} and {given!r} differ, but they are for one tied weight of "
                f"{type(model).__name__}; give one of them"
            )
    return {name: found[name] for name in known if name in found}


def _boolean(name: str, mask: object, parameter: Tensor) -> Tensor:
    """Return a mask as booleans; refuse another shape, and numbers other than 0 and 1."""
    if not isinstance(mask, Tensor) or mask.shape != parameter.shape:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise TicketError(
            f"mask {name!r} must be a tensor of shape {tuple(parameter.shape)}, not {found}"
        )
    kept_ones = mask.detach() == 1
    if not bool((kept_ones | (mask.detach() == 0)).all()):
        raise TicketError(
            f"mask {name!r} has other values than 0 and 1; make masks of importance or soft gates "
            "with gemkit.select first"
        )
    return kept_ones.cpu()


def pruned_masks(model: nn.Module) -> tuple[Tensors, Tensors]:
    """Return the masks of a pruned model, and its state without reparametrization.

    If a layer has a mask of `torch.nn.utils.prune`, zeros of other layers are not masks.
    """
    masks: Tensors = {}
    given = any(own + _MASK in layer._buffers for _, layer, own in candidates(model))
    seen: set[int] = set()
    for name, layer, own in candidates(model):
        weight, mask = layer._parameters.get(own), layer._buffers.get(own + _MASK)
        if weight is None and mask is None:
            raise refuse_recomputed(model, [name])
        first = weight if mask is None else layer._parameters[own + _ORIGINAL]
        if id(first) in seen:
            continue
        seen.add(id(first))
        if mask is not None:
            masks[name] = mask.detach() != 0
        elif weight is not None and kind_of(layer) in KINDS:  # embeddings have zeros for padding
            masks[name] = (
                torch.ones_like(weight, dtype=torch.bool) if given else weight.detach() != 0
            )
    if kept(masks) == total(masks):
        words = (
            "its masks of torch.nn.utils.prune keep every weight"
            if given
            else "its weights have no zeros, and no masks of torch.nn.utils.prune"
        )
        raise TicketError(f"{type(model).__name__} is not pruned: {words}")
    return masks, _plain_state(model)


def _plain_state(model: nn.Module) -> Tensors:
    """Return the state under the names of a network that is not reparametrized.

    Masks of other parameters than weights, such as biases, are applied to them.
    """
    state = model.state_dict(keep_vars=True)
    prunable = {name for name, *_ in candidates(model)}
    plain: Tensors = {}
    for name, value in state.items():
        base = name.removesuffix(_ORIGINAL)
        if name.endswith(_MASK) and name.removesuffix(_MASK) + _ORIGINAL in state:
            continue
        if base != name and base + _MASK in state:
            plain[base] = value if base in prunable else (value * state[base + _MASK]).detach()
        else:
            plain[name] = value
    return plain


def imported_info(
    masks: Tensors,
    state: Tensors,
    name: str,
    shape: tuple[int, ...] | None,
    classes: int | None,
    trained: bool,
) -> TicketInfo:
    """Describe a ticket that no search of gemkit found; warn of layers that keep no weight."""
    if not total(masks) or not kept(masks):
        words = "keep no weight" if masks else "are empty"
        raise TicketError(f"the masks {words}: {some(list(masks), 3)}; a ticket keeps some weights")
    try:
        info = TicketInfo(
            pruner=name,
            recipe=None,
            model=None,
            dataset=None,
            shape=shape,
            classes=classes,
            density_target=kept(masks) / total(masks),
            seed=0,
            epochs=0,
            stage="finetuned" if trained else "found",
            versions={"gemkit": version("gemkit"), "torch": torch.__version__},
            history=[],
            prune_frozen=any(not state[one].requires_grad for one in masks),
            tied=ties_of(state),
        )
    except ValidationError as error:
        raise TicketError(
            f"no ticket can record this ({explain(error).replace('pruner:', 'name:')}); give a "
            "name of some characters, a shape such as (3, 32, 32), and the number of classes"
        ) from error
    if empty := [one for one, mask in masks.items() if not bool(mask.any())]:
        warn_user(f"the masks keep no weight of {some(empty)}; they output nothing but their bias")
    return info
