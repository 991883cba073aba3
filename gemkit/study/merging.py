"""Merge the studies of several machines: all cells, and every stage that is done."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemkit.core.atomic_io import list_folder, read, write_atomic
from gemkit.core.errors import OptionError
from gemkit.core.limits import max_file_bytes
from gemkit.data.fingerprint import Fingerprint
from gemkit.runs.differences import differences
from gemkit.study.cell import CellInfo
from gemkit.study.stage_store import StageStore

_COPIED = ("stage.json", "metrics.jsonl", "log.txt", "ticket.safetensors")
"""Files of a stage besides its result, which is copied last."""


def merge(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Copy the finished stages of studies into one, and list the cells of all.

    A stage that several have must have the same result: a key is a promise of equal bits. Stages of
    one data set must have been measured on the same data.
    """
    stores = [StageStore(folder) for folder in folders]
    listed = [store.cells() for store in stores]
    target = StageStore(out)
    target.make()
    if target.is_study() and out.resolve() not in [folder.resolve() for folder in folders]:
        listed.append(target.cells())
    data: dict[str, tuple[Path, Fingerprint]] = {}
    for store, (_, own) in zip([*stores, target], listed, strict=False):
        _check_data(store, own, data)
    copied = sum(_copy_all(store, target) for store in stores)
    cells: dict[tuple[Any, ...], CellInfo] = {}
    for name, own in listed:
        for cell in own:
            key = (cell.variant, cell.search, cell.finetune)
            known = cells.get(key, cell.model_copy(update={"study": cell.study or name}))
            cells[key] = known.model_copy(update={"checks": {**known.checks, **cell.checks}})
    target.write_cells(out.name, list(cells.values()))
    stages = {stage for cell in cells.values() for stage in cell.stages()}
    done = sum(target.result(stage) is not None for stage in stages & target.present())
    return {"folder": str(out), "cells": len(cells), "stages": done, "copied": copied}


def _check_data(
    store: StageStore, cells: Sequence[CellInfo], known: dict[str, tuple[Path, Fingerprint]]
) -> None:
    """Refuse stages of a data set that others were not measured on; older ones recorded none."""
    present = store.present()
    for cell in cells:
        for stage in present.intersection(cell.stages()):
            result = store.result(stage)
            if result is None or result.data is None:
                continue
            spec = json.dumps(cell.config.get("dataset"), sort_keys=True)
            folder, then = known.setdefault(spec, (store.path, result.data))
            if other := then.differences(result.data):
                raise OptionError(
                    f"{folder} and {store.path} were measured on different data of data set "
                    f"'{cell.dataset}', so they cannot be merged: in the second, "
                    f"{', '.join(other)}; measure one of them again on the data of the other"
                )


def _copy_all(source: StageStore, target: StageStore) -> int:
    """Copy the stages that the target does not have, and compare those that it has."""
    if source.path.resolve() == target.path.resolve():
        return 0
    copied = 0
    for stage in sorted(source.present()):
        result = source.result(stage)
        if result is None:
            continue
        known = target.result(stage)
        if known is None:
            _copy(source, target, stage)
            copied += 1
        elif known.measured() != result.measured():
            other = differences(known.measured(), result.measured())
            raise OptionError(
                f"{target.path} and {source.path} disagree on {stage}, so they cannot be merged:"
                "\n  - " + "\n  - ".join(other[:5]) + "\nremove the folder of one of the two"
            )
    return copied


def _copy(source: StageStore, target: StageStore, stage: str) -> None:
    own, theirs = target.folder(stage), source.folder(stage)
    own.path.mkdir(parents=True, exist_ok=True)
    there = list_folder(theirs.path, within=source.path)
    with own.locked():
        for name in [*_COPIED, "result.json"]:
            if name in there:
                file = theirs.path / name
                data = read(file, max_file_bytes(), within=source.path)
                write_atomic(data, own.path / name, within=target.path)
