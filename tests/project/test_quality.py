"""Lint, format and types: the same commands a contributor runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]],
    ids=["lint", "format", "types"],
)
def test_the_code_is_clean(command):
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def lengths():
    """Count the lines of every module."""
    files = sorted((ROOT / "gemkit").rglob("*.py"))
    return {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}


def test_files_are_small():
    assert [file for file, count in lengths().items() if count > 300] == []
