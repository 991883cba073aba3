"""`gemkit study`: pruners × densities × seeds × checks, with every stage cached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.axes import axis_options, given_axes, split_fields, study_grid
from gemkit.cli.command import Answer, SectionedCommand, answers_json, echo, option
from gemkit.cli.options import (
    CHECKPOINT_MINUTES,
    checkpoint_option,
    data_dir_option,
    download_option,
    integer_option,
    plugin_option,
    preset_option,
)
from gemkit.cli.paths import PathType
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from gemkit.study.stage_store import StageStore
    from gemkit.study.status import Status
    from gemkit.study.study import Study

EXAMPLES = """\b
Several values, separated by commas, make an axis, and all axes are combined.
Examples:
  gemkit study --pruner gem_miner,snip --density 0.05,0.02 --seeds 5 --out studies/mine
  gemkit study --pruner snip --check shuffle,reinit -o search.lr=0.1,1.0 --dry-run
  gemkit study FILE.toml --jobs 4       # grids, zips, exclusions, variants: docs/studies.md
  gemkit study FILE.toml --on parsl:slurm -o executor.partition=gpu
  gemkit study status studies/mine
  gemkit study merge studies/mine studies/theirs --out studies/ours
"""


class StudyGroup(click.Group):
    """A group whose first word may be left out: anything but a subcommand is a study to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before the arguments of a study."""
        if not args or args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the usual form."""
        formatter.write_usage(ctx.command_path, "[FILE.toml] [OPTIONS]")


@click.group(cls=StudyGroup)
def study() -> None:
    """Run many cells: pruners × densities × seeds × checks."""


@study.command("run", cls=SectionedCommand, epilog=EXAMPLES)
@click.argument("file", required=False, type=PathType())
@preset_option
@axis_options
@option(
    "Cells",
    "--check",
    "checks",
    metavar="A,B",
    multiple=True,
    help="Checks and measurements of every ticket; see `gemkit parts checks`.",
)
@data_dir_option("data")
@download_option
@option(
    "Machine",
    "--on",
    "executor",
    metavar="NAME",
    default="local",
    help="Where stages run: local, parsl:local, parsl:slurm, parsl:FILE.py; "
    "-o executor.FIELD sets its fields.",
)
@integer_option(
    "Machine",
    "--jobs",
    "Stages at once.",
    least=1,
    show_default="one for each GPU, or cores ÷ threads; ÷ devices",
)
@option(
    "Output",
    "--out",
    type=PathType(),
    metavar="DIR",
    show_default="studies/NAME of the file, or studies/MODEL-DATASET",
    help="Folder of the study. What it has is not measured again.",
)
@option("Output", "--dry-run", is_flag=True, help="Run nothing; print what would run.")
@checkpoint_option(CHECKPOINT_MINUTES)
@answers_json
@plugin_option
def run(
    file: Path | None,
    preset: str | None,
    executor: str,
    jobs: int | None,
    out: Path | None,
    dry_run: bool,
    download: bool,
    plugins: Sequence[Path],
    **options: Any,  # noqa: ANN401 - the axes, and settings of every run
) -> Answer:
    """Run a study: every combination of the given values, each stage once.

    A search serves its fine-tuning and all its checks. The same command continues an interrupted
    study; with another seed, density or check, only what is missing is measured.
    """
    from gemkit.core.errors import OptionError
    from gemkit.plugins.loader import load_plugins
    from gemkit.study.study import Study

    if file is not None and file.is_dir():
        raise OptionError(
            f"{file} is a folder, and a study is started from a TOML file or from options; `gemkit "
            f"study status {file}` shows a study"
        )
    registry = load_plugins(files=[path.absolute() for path in plugins])
    fields, own = split_fields(options["axes"]["fields"])
    axes = given_axes(options, fields)
    grid = study_grid(registry, file, preset, axes, options)
    confirmed = None if file is None else axes.get(("model",), [])
    place = registry.build("executors", executor, own)
    folder = out or Path("studies") / (grid.name or "study")
    data_dir = options["data_dir"]
    study = Study.of(grid, folder, data_dir=data_dir, registry=registry, confirmed=confirmed)
    if dry_run:
        study.store.check_free()
        return plan_of(study, place, jobs)
    _note_other_cells(study)
    study.run(place, jobs=jobs, download=download)  # type: ignore[arg-type] # its kind
    return answer_of(study.store, study.status())


@study.command("status", cls=SectionedCommand)
@click.argument("folder", metavar="DIR", type=PathType())
@answers_json
def status(folder: Path) -> Answer:
    """Show how far the study in DIR is: means over seeds, what runs, and what failed."""
    from gemkit.study.study import load

    study = load(folder)
    now = study.status()
    return Answer(now.to_data(), answer_of(study.store, now).text)


@study.command("merge", cls=SectionedCommand)
@click.argument("folders", metavar="DIR…", nargs=-1, required=True, type=PathType())
@option(
    "Output",
    "--out",
    type=PathType(),
    metavar="DIR",
    required=True,
    help="Folder of the merged study: new, or one of those given.",
)
@answers_json
def merge(folders: Sequence[Path], out: Path) -> Answer:
    """Merge studies of several machines: all cells, and every stage that is done.

    A stage that several studies have must have the same result in all of them.
    """
    from gemkit.study.merging import merge

    data = merge(folders, out)
    stages = number_of(data["stages"], "stage")
    return Answer(data, f"{out}: {number_of(data['cells'], 'cell')}, {stages} that are done")


def answer_of(store: StageStore, now: Status) -> Answer:
    """Return the means over seeds, and how many cells are in which state."""
    from gemkit.study.study import records_of
    from gemkit.study.view import group_table, measure_text, problems_text

    counts = [f"{count} {state}" for state, count in now.states.items() if count]
    stages = f"{now.stages['done']} of {number_of(now.stages['total'], 'stage')} done"
    running = f", {now.stages['running']} running" if now.running else ""
    records = records_of(now)
    about = f"{records[0]['metric']}{measure_text(records[0]['metric'])}" if records else ""
    lines = [group_table(records), "", about, f"cells: {', '.join(counts)}; {stages}{running}"]
    lines += [f"running: {one}" for one in now.progress()]
    if now.failures:
        lines.append(problems_text(now.problems()))
        lines.append("failed stages are tried again by the same command")
    lines.append(f"study: {store.path}")
    data = {"folder": str(store.path), **now.to_data(), "records": list(records)}
    return Answer(data, "\n".join(lines), code=1 if now.failures else 0)


def plan_of(study: Study, place: Any, jobs: int | None) -> Answer:  # noqa: ANN401 - an executor
    """Return what would run, what is there already, and how long the rest may take."""
    from gemkit.study.status import seconds_left
    from gemkit.study.view import duration

    board = study.board()
    missing = board.missing()
    count = jobs or place.jobs(study.threads, study.devices)
    seconds = seconds_left(board.cells, board.results)
    lines = [f"{stage.title}" for stage in missing]
    there = len(board.stages) - len(missing)
    time = "unknown yet" if seconds is None else f"about {duration(seconds / count)}"
    lines += [
        f"{number_of(len(study.cells), 'cell')}, {number_of(len(board.stages), 'stage')}: {there} "
        f"there already, {len(missing)} to run, {count} at once",
        f"time: {time if missing else 'none'}",
        *(f"note: {note}" for note in board.notes()),
    ]
    data = {
        "study": study.name,
        "cells": len(study.cells),
        "stages": len(board.stages),
        "there": there,
        "missing": [{"stage": one.name, "title": one.title} for one in missing],
        "jobs": count,
        "seconds": None if seconds is None else seconds / count,
        "notes": board.notes(),
    }
    return Answer(data, "\n".join(lines))


def _note_other_cells(study: Study) -> None:
    """Say so if the folder lists cells that this study does not have."""
    if not study.store.is_study():
        return
    now = {(one.info.variant, *one.info.stages()[:2]) for one in study.cells}
    _, former = study.store.cells()
    gone = [one for one in former if (one.variant, *one.stages()[:2]) not in now]
    if gone:
        echo(
            f"note: {study.store.path} listed {number_of(len(gone), 'cell')} that this study does "
            "not have; their results stay there, and are used if they are listed again",
            err=True,
        )
