"""The body of `gemkit resume`."""

from pathlib import Path
from typing import Any

from gemkit.cli.answers import Answer
from gemkit.cli.reporting import Report
from gemkit.cli.running import answer_of
from gemkit.runs.run import resume


def start(folder: Path, **options: Any) -> Answer:  # noqa: ANN401 - the options of the command
    """Resume the run in a folder."""
    report = Report()
    result = resume(folder, progress=report, **options)
    return answer_of(result, report.settings)
