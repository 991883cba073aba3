"""The loaded plugins, what each contributes, and the refused ones."""

from collections.abc import Mapping
from typing import Any

from gemkit.plugins.loader import BUILT_IN
from gemkit.plugins.registry import Registry


def plugins_data(registry: Registry) -> dict[str, Any]:
    """Describe every plugin, built-in ones first, and why others were refused."""
    contributed: dict[tuple[str, str], dict[str, list[str]]] = {}
    named = {"pruners": registry.pruners, "presets": registry.presets}
    for kind, entries in {**registry.parts, **named}.items():
        for name, entry in entries.items():
            own = contributed.setdefault((entry.plugin, entry.distribution), {})
            own.setdefault(kind, []).append(name)
    listed = [
        {
            "plugin": plugin,
            "distribution": distribution,
            "built_in": plugin in BUILT_IN,
            "brings": things,
        }
        for (plugin, distribution), things in contributed.items()
    ]
    return {
        "plugins": sorted(listed, key=lambda one: not one["built_in"]),
        "refused": [refusal._asdict() for refusal in registry.refused],
        "contested": [
            {"kind": kind, "name": name, "reason": reason}
            for (kind, name), reason in registry.contested.items()
        ],
    }


def plugins_text(data: Mapping[str, Any]) -> str:
    """Return the plugins as text: a count for the built-in ones, a list for each other one."""
    own = [
        things for one in data["plugins"] if one["built_in"] for things in one["brings"].values()
    ]
    lines = [f"built into gemkit: {sum(map(len, own))} parts, pruners and presets"]
    for one in data["plugins"]:
        if not one["built_in"]:
            things = [f"{kind} {name}" for kind, names in one["brings"].items() for name in names]
            lines.append(f"{one['plugin']} ({one['distribution']}): {', '.join(things)}")
    lines += [f"refused: {one['reason']}" for one in data["refused"]]
    lines += [f"contested: {one['reason']}" for one in data["contested"]]
    return "\n".join(lines)
