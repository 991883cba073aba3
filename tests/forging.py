"""Files by the published format, not by gemkit's code, whose hashes are right."""

import hashlib
import json
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

from gemkit.core.tensor_file import DTYPES
from gemkit.tickets.file import pack


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def forge(path, ticket, change=None, document=None):
    """Write a file by the published format, not by gemkit's code, with a hash that is right."""
    tensors = {f"mask/{n}": pack(m) for n, m in ticket.mask.items()}
    tensors |= {f"state/{n}": t for n, t in ticket.state.items()}
    tensors = {n: t for n, t in (tensors | (change or {})).items() if t is not None}
    header = {
        "format": 1,
        "mask": list(ticket.mask),
        "state": list(ticket.state),
        "info": ticket.info.model_dump(mode="json"),
        **(document or {}),
    }
    sha = hashlib.sha256(canonical(header))
    for name in sorted(tensors):
        tensor = tensors[name]
        code = {**DTYPES, torch.float8_e5m2: "F8_E5M2"}[tensor.dtype]
        sha.update(canonical([name, code, list(tensor.shape)]) + raw(tensor))
    header.setdefault("sha256", sha.hexdigest())
    save_file(tensors, path, {"gemkit": json.dumps(header)})


def header_alone(path, tensors, metadata, size=0):
    """Write a header and a hole: what takes no room on the disk, and no memory to make.

    `tensors` is the text of the header's entries.
    """
    text = f'{{"__metadata__":{json.dumps(metadata)},{tensors}}}'.encode()
    with Path(path).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
