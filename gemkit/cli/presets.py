"""The body of `gemkit presets`."""

from gemkit.cli.answers import Answer
from gemkit.errors import UnknownNameError
from gemkit.registry import Registry
from gemkit.report.presets import preset_rows, preset_table


def listing(registry: Registry, name: str | None) -> Answer:
    """Describe one preset in full, or all whose name begins so."""
    try:
        preset = registry.preset(name or "").thing
    except UnknownNameError:
        rows = preset_rows(registry, name)
        if not rows:
            raise
        return Answer({"presets": rows}, preset_table(rows))
    return Answer(preset.to_data(), preset.to_toml().rstrip())
