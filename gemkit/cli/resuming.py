"""The body of `gemkit resume`."""

from collections.abc import Sequence
from pathlib import Path

from gemkit.cli.answers import Answer
from gemkit.cli.job import job_of
from gemkit.cli.running import conduct
from gemkit.errors import UnknownNameError
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
    return conduct(registry, job, manner.model_copy(update=known), folder)


def _plugins_said(config: dict[str, object]) -> list[str]:
    """Name the plugin files that the run says it was started with."""
    run = config.get("run")
    files = run.get("plugins") if isinstance(run, dict) else None
    return [str(file) for file in files] if isinstance(files, list) else []
