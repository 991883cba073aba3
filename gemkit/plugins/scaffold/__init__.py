"""Create a plugin package from templates; it installs, passes its tests and prunes."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from importlib import metadata, resources
from pathlib import Path
from string import Template

from gemkit.core.errors import OptionError, PluginError
from gemkit.parts.recipe import PART_NAME
from gemkit.plugins.registry import Registry

PREFIX = "gemkit-"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "module.py": "${module}.py",
    "test.py": "tests/test_${module}.py",
}
"""Template -> path in the package."""


def new_plugin(name: str, folder: Path, registry: Registry) -> Path:
    """Create a plugin called `name` (with or without the prefix gemkit-) in a new folder.

    The new folder is named after the distribution; on an error nothing is created.
    """
    words = _words(name)
    _refuse_taken(words["name"], registry)
    if re.search(rf"import .*\b{words['cls']}\b", _filled("module.py", words)):
        raise OptionError(f"'{name}' would give a class the name of one it imports; choose another")
    target = folder / words["distribution"]
    if target.exists():
        raise OptionError(f"{target} exists already; choose another name or another --dir")
    if not folder.is_dir():
        raise OptionError(f"there is no directory {folder}")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-plugin-") as unfinished:
        made = Path(unfinished) / target.name
        for template, place in FILES.items():
            file = made / Template(place).substitute(words)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_filled(template, words), encoding="utf-8")
        shutil.move(made, target)
    return target


def _words(name: str) -> dict[str, str]:
    """Derive all spellings of a plugin name."""
    short = name.removeprefix(PREFIX).replace("-", "_")
    if not re.fullmatch(PART_NAME, short) or short.endswith("_") or keyword.iskeyword(short):
        raise OptionError(
            f"'{name}' cannot name a plugin; use lower-case letters, digits and -, starting with "
            "a letter, as in 'gemkit-my-pruner'"
        )
    return {
        "name": short,
        "module": f"gemkit_{short}",
        "distribution": PREFIX + short.replace("_", "-"),
        "cls": "".join(part.capitalize() for part in short.split("_")),
        "version": metadata.version("gemkit"),
    }


def _refuse_taken(name: str, registry: Registry) -> None:
    """Refuse a name that is already registered."""
    for label, known in (("scores", registry.parts["scores"]), ("pruner", registry.pruners)):
        if name in known:
            raise PluginError(
                f"the {label} '{name}' exists already ({known[name].distribution}), and gemkit "
                "loads no plugin that registers a name again; choose another"
            )


def _filled(template: str, words: dict[str, str]) -> str:
    """Read a template and fill it in."""
    file = resources.files("gemkit.plugins.scaffold") / "templates" / f"{template}.template"
    return Template(file.read_text(encoding="utf-8")).substitute(words)
