"""A new plugin from templates: a package that installs, passes its tests and prunes as it is."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from importlib import metadata, resources
from pathlib import Path
from string import Template

from gemkit.errors import OptionError, PluginError
from gemkit.recipe import PART_NAME
from gemkit.registry import Registry

PREFIX = "gemkit-"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "module.py": "${module}.py",
    "test.py": "tests/test_${module}.py",
}
"""Template -> where it goes."""


def new_plugin(name: str, folder: Path, registry: Registry) -> Path:
    """Write a plugin called `name` (with or without the prefix gemkit-) into a new folder.

    The folder is named after the distribution and made inside `folder`, whole or not at all.
    """
    words = _words(name)
    _refuse_taken(words["name"], registry)
    if re.search(rf"import .*\b{words['cls']}\b", _filled("module.py", words)):
        raise OptionError(f"'{name}' would give a class the name of one it needs; choose another")
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
    """Derive all spellings of a name."""
    short = name.removeprefix(PREFIX).replace("-", "_")
    if not re.fullmatch(PART_NAME, short) or short.endswith("_") or keyword.iskeyword(short):
        raise OptionError(
            f"'{name}' cannot name a plugin; use small letters, digits and -, a letter first, "
            "as in 'gemkit-my-pruner'"
        )
    return {
        "name": short,
        "module": f"gemkit_{short}",
        "distribution": PREFIX + short.replace("_", "-"),
        "cls": "".join(part.capitalize() for part in short.split("_")),
        "version": metadata.version("gemkit"),
    }


def _refuse_taken(name: str, registry: Registry) -> None:
    """Refuse a name under which gemkit would not load the plugin."""
    for label, known in (("scores", registry.parts["scores"]), ("pruner", registry.pruners)):
        if name in known:
            raise PluginError(
                f"the {label} '{name}' exists already ({known[name].distribution}), and gemkit "
                "loads no plugin that brings a name again; choose another"
            )


def _filled(template: str, words: dict[str, str]) -> str:
    """Read a template and put the words in."""
    file = resources.files("gemkit.scaffold") / "templates" / f"{template}.template"
    return Template(file.read_text(encoding="utf-8")).substitute(words)
