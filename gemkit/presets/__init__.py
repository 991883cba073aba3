"""gemkit's own presets: the tables of Rare Gems, its baselines, and short ones for any machine."""

from pathlib import Path
from typing import Any

from gemkit.hookspecs import hookimpl
from gemkit.preset import presets_in


@hookimpl
def gemkit_presets() -> dict[str, dict[str, Any]]:
    """Read the files next to this one."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return {name: data for file in files for name, data in presets_in(file).items()}
