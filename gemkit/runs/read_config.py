"""Read the configuration of a run: from TOML, from a file, or from a table."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from gemkit.core.atomic_io import read
from gemkit.core.density import density_of_sparsity
from gemkit.core.errors import OptionError
from gemkit.core.limits import MAX_CONFIG_BYTES
from gemkit.parts.options import from_data, report
from gemkit.parts.recipe import Recipe
from gemkit.runs.config import RecordedConfig, RunConfig, RunSettings
from gemkit.training.plan import Plan, Runtime

Config = TypeVar("Config", bound=RunConfig)


def load_config(file: Path | str) -> RunConfig:
    """Read a configuration from a TOML file, for example config.toml in the folder of a run."""
    try:
        return config_from_toml(read(Path(file), MAX_CONFIG_BYTES).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{file} cannot be read: {error}") from error
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from error


def config_from_toml(text: str) -> RunConfig:
    """Parse a configuration from `RunConfig.to_toml` or from a run's folder.

    A file alone runs no code: its network is a table, never the name of a function.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"this configuration is not valid TOML: {error}") from error
    if isinstance(data.get("model"), str):
        data["model"] = {"name": data["model"]}
    return _validated(RecordedConfig if "versions" in data else RunConfig, data)


def config_from(data: Mapping[str, Any]) -> RunConfig:
    """Validate a configuration that is given as a table; plans and recipes may be objects."""
    given = data.get("objective")
    own = {} if isinstance(given, str | Mapping | None) else {"objective": given}  # no plain data
    plain = {key: _plain(value) for key, value in data.items() if key not in own}
    config = _validated(RunConfig, plain)
    return config.replace(**own) if own else config


def _plain(value: object) -> object:
    """Return a plan, a runtime, settings or a recipe as plain data."""
    if isinstance(value, Plan | Runtime | RunSettings):
        return value.model_dump(mode="json", exclude_unset=True)
    return value.to_data() if isinstance(value, Recipe) else value


def _validated(kind: type[Config], data: Mapping[str, Any]) -> Config:
    """Validate a table, and report all problems at once."""
    config, problems = from_data(kind, with_density(data), label="", title="a run")
    if config is None:
        raise report("this configuration", problems)
    return config


def with_density(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with a density in place of a sparsity, if it has one."""
    if "sparsity" not in data:
        return dict(data)
    if "density" in data:
        raise OptionError("density and sparsity both say how many weights to keep; give one")
    sparsity = data["sparsity"]
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float | str):
        raise OptionError(f"sparsity = {sparsity!r}: should be a number, or a text such as '95%'")
    try:
        density = density_of_sparsity(sparsity)
    except ValueError as error:
        raise OptionError(f"sparsity = {sparsity!r}: {error}") from error
    return {"density": density} | {key: own for key, own in data.items() if key != "sparsity"}
