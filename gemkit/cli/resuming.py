"""The body of `gemkit resume`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import nn

from gemkit.cli.answers import Answer
from gemkit.cli.choices import title_of
from gemkit.cli.job import job_of
from gemkit.cli.networks import at_most
from gemkit.cli.running import conduct
from gemkit.errors import UnknownNameError
from gemkit.limits import MOST_PARAMETERS
from gemkit.models.blocks import Shape
from gemkit.models.custom import model_data
from gemkit.parts import ModelPart
from gemkit.plugins import load_plugins
from gemkit.rundir import RunDir


def go_on(
    folder: Path,
    *,
    model: str | None,
    data_dir: Path | None,
    checkpoint_minutes: float | None,
    plugins: Sequence[Path],
) -> Answer:
    """Read what the run is from its folder, and carry it on."""
    registry = load_plugins(files=plugins)
    config = RunDir(folder).config()
    RunDir(folder).check_plain()
    try:
        job, manner = job_of(registry, config, model)
    except UnknownNameError as error:
        files = _plugins_said(config)
        if not files or plugins:
            raise
        words = " ".join(f"--plugin {file}" for file in files)
        raise UnknownNameError(
            f"{error}\nthe run was started with {words}; a file alone runs no code, so if you "
            "trust that one, give it again"
        ) from error
    other = {
        "data_dir": None if data_dir is None else str(data_dir),
        "checkpoint_minutes": checkpoint_minutes,
        "plugins": [str(file) for file in plugins],
    }
    known = {name: value for name, value in other.items() if value is not None}
    build = None if model else partial(_within_bounds, job.model)
    return conduct(registry, job, manner.model_copy(update=known), folder, build=build)


def _within_bounds(model: ModelPart, shape: Shape, classes: int) -> nn.Module:
    """Build a network that nothing but the run's folder asks for."""
    too_large = (
        f"the run's folder asks for a network of more than {MOST_PARAMETERS:,} parameters; if you "
        f"trust it and have the memory, give --model {title_of(model_data(model))}"
    )
    with at_most(MOST_PARAMETERS, too_large):
        return model.build(shape, classes)


def _plugins_said(config: dict[str, object]) -> list[str]:
    """Name the plugin files that the run says it was started with."""
    run = config.get("run")
    files = run.get("plugins") if isinstance(run, dict) else None
    return [str(file) for file in files] if isinstance(files, list) else []
