"""Run the tests with the oldest or the newest releases that pyproject.toml allows.

    python tests/versions.py oldest            # every lower bound `>=X` installed as `==X`
    python tests/versions.py newest            # whatever pip takes today
    python tests/versions.py oldest -n auto tests/test_engine.py    # more words go to pytest

Needs nothing but Python. The environment is kept in .venv-oldest or .venv-newest, or where --venv
says, and used again by the next call.
"""

import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Types are checked against the newest releases only, and an old release may use what a newer one
# of another library has deprecated.
ADDED = {
    "oldest": "--ignore=tests/test_quality.py "
    "-W default::DeprecationWarning -W default::PendingDeprecationWarning",
    "newest": "",
}
"""What is added to the options of pytest, also where a test starts another one."""


def bounds(project: dict) -> dict[str, str]:
    """Return the lower bound of every requirement, those of the extras included."""
    needs = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        needs += extra
    others = [need for need in needs if not need.startswith(f"{project['name']}[")]
    return dict(need.split(">=") for need in others)


def requirements(which: str, project: dict) -> list[str]:
    """Return what pip installs beside gemkit itself."""
    pins = [f"{name}=={lowest}" for name, lowest in bounds(project).items()]
    return pins if which == "oldest" else []


def main() -> int:
    """Make the environment, then run pytest in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=ADDED)
    parser.add_argument("--venv", type=Path, help="where the environment is kept")
    given, words = parser.parse_known_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = (given.venv or ROOT / f".venv-{given.which}").absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--upgrade-strategy=eager", "-Ue", ".[test]"]
    subprocess.run([*pip, *requirements(given.which, project)], cwd=ROOT, check=True)
    options = {"PYTEST_ADDOPTS": ADDED[given.which]}
    pytest = [python, "-m", "pytest", *words]
    return subprocess.run(pytest, cwd=ROOT, env=os.environ | options, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
