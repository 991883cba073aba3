"""Load weights from an untrusted file: safetensors, or a `.pth` that holds only tensors."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gemkit.core.atomic_io import fd_path, open_plain
from gemkit.core.errors import GemkitError, ModelError, describe_error, some
from gemkit.core.tensors import Tensors
from gemkit.models.check import check_model

_WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts store the weights, next to the optimizer and other state."""

_SAFE_TORCH = "2.10"
"""Older versions may execute code in a `.pth` (CVE-2025-32434, CVE-2026-24747)."""


def read_weights(file: Path) -> Tensors:
    """Read a file of named tensors; nothing in it is ever executed."""
    if not file.exists():
        raise ModelError(f"there is no weights file {file}")
    try:
        with open_plain(file) as plain:
            if file.suffix == ".safetensors":
                return load_file(fd_path(plain))
            _refuse_old_torch(file)
            found: object = torch.load(plain, map_location="cpu", weights_only=True)
    except GemkitError:
        raise
    except Exception as error:  # damaged files fail in many ways
        raise ModelError(
            f"no weights can be read from {file}, which is damaged or holds more than tensors "
            f"({describe_error(error)}); give a .safetensors file, or a .pth file with a state_dict"
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
    """Refuse a pickle if this version of torch does not read it safely."""
    if torch.__version__ < _SAFE_TORCH:
        raise ModelError(
            f"{file} is not read, because torch {torch.__version__} may execute code in it; give "
            f"a .safetensors file, or install torch {_SAFE_TORCH} or newer"
        )


def load_weights(model: nn.Module, file: Path | str) -> nn.Module:
    """Load the weights in a file into a model of your own, and return it.

    The file is a safetensors file, or a `.pth` or `.ckpt` that holds only tensors; nothing in it is
    executed. Names and shapes must match; a common prefix, as of DDP, `torch.compile` or a
    Lightning module, is removed.
    """
    own = check_model(model)
    load_weights_(own, read_weights(Path(file)), str(file), type(own).__name__, classes=0)
    return model


def load_weights_(model: nn.Module, state: Tensors, source: str, title: str, classes: int) -> None:
    """Load weights into a network; all names and shapes must match.

    Only the last layer may have another number of classes; it then keeps its initial values.
    """
    expected = model.state_dict()
    state = _without_prefix(state, list(expected))
    heads = {
        name
        for name in expected
        if name in state and _is_head(state[name], expected[name], classes)
    }
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in state and name not in heads and state[name].shape != expected[name].shape
    ]
    found = [
        ("missing", [name for name in expected if name not in state and not _is_batch_count(name)]),
        ("unknown to the network", [name for name in state if name not in expected]),
        ("of another shape", shapes),
    ]
    problems = [f"{what}: {some(names, 3)}" for what, names in found if names]
    if problems:
        raise ModelError(f"the weights of {source} do not fit {title}; " + "; ".join(problems))
    model.load_state_dict(
        {name: expected[name] if name in heads else value for name, value in state.items()},
        strict=False,
    )


def _without_prefix(state: Tensors, expected: list[str]) -> Tensors:
    """Remove a prefix that all names have and the network's own names lack."""
    first = next((name for name in expected if not _is_batch_count(name)), "")
    ends = [name for name in state if first and name.endswith(f".{first}")]
    for prefix in (name.removesuffix(first) for name in ends):
        if all(name.startswith(prefix) for name in state) and first not in state:
            return {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _is_head(given: Tensor, expected: Tensor, classes: int) -> bool:
    """Whether two tensors belong to the last layer, for different numbers of classes."""
    return (
        given.shape != expected.shape
        and expected.shape[:1] == (classes,)
        and given.shape[1:] == expected.shape[1:]
        and given.ndim > 0
    )


def _is_batch_count(name: str) -> bool:
    """Whether this is the batch counter of a batch norm, which old files lack."""
    return name.endswith("num_batches_tracked")
