"""Built-in presets: the tables of Rare Gems, its baselines, and short runs for any machine."""

from pathlib import Path
from typing import Any

from gemkit.plugins.markers import hookimpl
from gemkit.presets.preset import presets_in


@hookimpl
def gemkit_presets() -> dict[str, dict[str, Any]]:
    """Register the presets in the TOML files of this folder."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return {name: data for file in files for name, data in presets_in(file).items()}
