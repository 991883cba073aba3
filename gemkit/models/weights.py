"""Weights from a file, read without trust: safetensors, or a `.pth` that holds tensors alone."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gemkit.errors import GemkitError, ModelError, some
from gemkit.files import name_of, open_plain
from gemkit.models.foreign import first_line
from gemkit.tensors import Tensors

_WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts put the weights, beside the optimizer and other things."""

_SAFE_TORCH = "2.10"
"""Older ones may execute code in a `.pth` (CVE-2025-32434, CVE-2026-24747)."""


def read_weights(file: Path) -> Tensors:
    """Read a file of named tensors; nothing in it is ever executed."""
    if not file.exists():
        raise ModelError(f"there is no file {file} to take weights from")
    try:
        with open_plain(file) as plain:
            if file.suffix == ".safetensors":
                return load_file(name_of(plain))
            _refuse_old_torch(file)
            found: object = torch.load(plain, map_location="cpu", weights_only=True)
    except GemkitError:
        raise
    except Exception as error:  # damaged files fail in many ways
        raise ModelError(
            f"no weights can be read from {file}, which is damaged or holds more than tensors "
            f"({first_line(error)}); give a .safetensors file, or a .pth file with a state_dict"
        ) from error
    for key in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise ModelError(
            f"{file} holds no weights; give the state_dict of a network: tensors by name"
        )
    return dict(found)


def _refuse_old_torch(file: Path) -> None:
    """Refuse a pickle where torch does not read it safely."""
    if torch.__version__ < _SAFE_TORCH:
        raise ModelError(
            f"{file} is not read, because torch {torch.__version__} may execute code in it; give "
            f"a .safetensors file, or install torch {_SAFE_TORCH} or newer"
        )


def load_weights_(model: nn.Module, state: Tensors, source: str, title: str, classes: int) -> None:
    """Put weights into a network; every name and shape must be the network's own.

    Only the last layer may differ, where the weights were made for another number of classes: it
    keeps the values it was built with.
    """
    own = model.state_dict()
    heads = {name for name in own if name in state and _is_head(state[name], own[name], classes)}
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in state and name not in heads and state[name].shape != own[name].shape
    ]
    found = [
        ("missing", [name for name in own if name not in state and not _counts_batches(name)]),
        ("unknown to the network", [name for name in state if name not in own]),
        ("of another shape", shapes),
    ]
    problems = [f"{what}: {some(names, 3)}" for what, names in found if names]
    if problems:
        raise ModelError(f"the weights of {source} do not fit {title}; " + "; ".join(problems))
    model.load_state_dict(
        {name: own[name] if name in heads else value for name, value in state.items()},
        strict=False,
    )


def _is_head(given: Tensor, own: Tensor, classes: int) -> bool:
    """Tell whether two tensors belong to the same last layer, for another number of classes."""
    return (
        given.shape != own.shape
        and own.shape[:1] == (classes,)
        and given.shape[1:] == own.shape[1:]
        and given.ndim > 0
    )


def _counts_batches(name: str) -> bool:
    """Tell whether this is the counter of a batch norm, which old files do not have."""
    return name.endswith("num_batches_tracked")
