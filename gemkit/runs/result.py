"""What comes of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gemkit.options import from_data, report
from gemkit.ticket import Ticket


class Level(BaseModel):
    """A ticket that was saved on the way to the target density."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    density: float | None = Field(default=None, description="what it keeps")
    ticket: Path = Field(description="its file")
    accuracy: float | None = Field(
        default=None, description="validation accuracy of its network, where it was trained"
    )


class RunResult(BaseModel):
    """The outcome of a run, as in result.json; older files leave some of it out."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    pruner: str = ""
    density_target: float = Field(description="the density asked for")
    density: float = Field(description="the fraction of the prunable weights that is kept")
    kept: int = Field(description="how many weights are kept")
    prunable: int = Field(description="of how many")
    alive: int | None = Field(description="how many were never frozen")
    accuracy_before: float = Field(description="test accuracy before fine-tuning")
    accuracy_after: float = Field(description="test accuracy after it")
    seed: int
    epochs: int | None = Field(default=None, description="epochs of the search, rounds included")
    finetune_epochs: int | None = None
    seconds: float = Field(description="how long the run worked, in all its sessions")
    seconds_search: float
    ticket: Path = Field(description="the file of the ticket as the search found it")
    finetuned: Path = Field(description="the file of the ticket with trained weights")
    ladder: list[Level] = Field(default=[], description="tickets saved on the way")
    run_dir: Path = Field(description="the folder of the run")
    device: str = ""
    recipe: dict[str, Any] = {}
    model: dict[str, Any]
    dataset: dict[str, Any] | None = None
    versions: dict[str, str] = {}
    layers: list[dict[str, Any]] = Field(default=[], description="what every layer keeps")
    checks: dict[str, Any] | None = Field(
        default=None, description="what is in checks.json, if the run made checks"
    )

    def load_ticket(self) -> Ticket:
        """Load the ticket as the search found it."""
        return Ticket.load(self.ticket, within=self.run_dir)

    def load_finetuned(self) -> Ticket:
        """Load the ticket with trained weights."""
        return Ticket.load(self.finetuned, within=self.run_dir)

    def load_ladder(self) -> list[Ticket]:
        """Load the tickets that were saved on the way, from dense to sparse."""
        return [Ticket.load(level.ticket, within=self.run_dir) for level in self.ladder]

    def to_data(self) -> dict[str, Any]:
        """Return plain data, as in result.json."""
        return self.model_dump(mode="json", exclude_unset=True)


def result_from(data: Mapping[str, Any]) -> RunResult:
    """Validate a result, which may have been read from a file."""
    result, problems = from_data(RunResult, data, label="result", title="a result")
    if result is None:
        raise report("the result of this run", problems)
    return result
