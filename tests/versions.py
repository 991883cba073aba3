"""Run the tests with the oldest or the newest releases that pyproject.toml allows.

    python tests/versions.py oldest            # install every lower bound `>=X` as `==X`
    python tests/versions.py newest            # install the newest releases
    python tests/versions.py oldest -n auto tests/unit/pruning    # pass options to pytest

Needs only Python. The environment is created in .venv-oldest or .venv-newest, or in --venv, and
reused by the next call.
"""

import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Types are checked against the newest releases only. An old release may use what a newer release
# of another library has deprecated.
ADDED = {
    "oldest": "--ignore=tests/project/test_quality.py "
    "-W default::DeprecationWarning -W default::PendingDeprecationWarning",
    "newest": "",
}
"""Options for pytest, also where a test starts another pytest."""


def bounds(project: dict) -> dict[str, str]:
    """Return the lower bound of every requirement, including extras."""
    needs = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        needs += extra
    others = [need for need in needs if not need.startswith(f"{project['name']}[")]
    return dict(need.split(">=") for need in others)


def requirements(which: str, project: dict) -> list[str]:
    """Return the pinned requirements to install besides gemkit."""
    pins = [f"{name}=={lowest}" for name, lowest in bounds(project).items()]
    return pins if which == "oldest" else []


def main() -> int:
    """Create the environment and run pytest in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=ADDED)
    parser.add_argument("--venv", type=Path, help="the folder of the environment")
    arguments, options = parser.parse_known_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = (arguments.venv or ROOT / f".venv-{arguments.which}").absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--upgrade-strategy=eager", "-Ue", ".[test]"]
    subprocess.run([*pip, *requirements(arguments.which, project)], cwd=ROOT, check=True)
    added = {"PYTEST_ADDOPTS": ADDED[arguments.which]}
    pytest = [python, "-m", "pytest", *options]
    return subprocess.run(pytest, cwd=ROOT, env=os.environ | added, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
