"""The machine and the software a run was carried out with, as far as results may depend on it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

_LIBRARIES = (
    *("torch", "torchvision", "timm", "numpy", "torchmetrics", "lightning-fabric"),
    *("pydantic", "safetensors", "pillow", "scipy"),
)


def environment(device: torch.device) -> dict[str, str | int]:
    """Describe this machine, without its name, and the libraries in use."""
    found: dict[str, str | int] = {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
