"""The result of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gemkit.parts.options import from_data, report
from gemkit.tickets.ticket import Ticket

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0)]


class StoredNetwork(BaseModel):
    """The network in result.json, which may be the user's own."""

    model_config = ConfigDict(frozen=True, strict=True)

    custom: str = ""


class StoredLevel(BaseModel):
    """A level in result.json."""

    model_config = ConfigDict(frozen=True, strict=True)

    ticket: str


class StoredResult(BaseModel):
    """The fields of result.json that gemkit reads, with bounds, since the file is untrusted."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    density_target: Share
    density: Share
    kept: Count
    prunable: Annotated[Count, Field(gt=0)]
    alive: Count | None
    accuracy_before: Share
    accuracy_after: Share
    seed: Count
    seconds: Seconds
    seconds_search: Seconds
    ticket: str
    run_dir: str
    ladder: list[StoredLevel] = []
    model: StoredNetwork


class Level(BaseModel):
    """A level of an iterative search: the ticket at one density on the way to the target."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    density: float | None = Field(
        default=None, description="fraction of the prunable weights it keeps"
    )
    ticket: Path = Field(description="its file")
    accuracy: float | None = Field(
        default=None, description="validation accuracy of its network, where it was trained"
    )


class RunResult(BaseModel):
    """The result of a run, as in result.json; older files lack some fields."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    pruner: str = ""
    density_target: float = Field(description="the target density")
    density: float = Field(
        description="the actual density: the fraction of the prunable weights that is kept"
    )
    kept: int = Field(description="how many weights the ticket keeps")
    prunable: int = Field(description="of how many")
    alive: int | None = Field(description="how many were never frozen")
    accuracy_before: float = Field(description="test accuracy before fine-tuning")
    accuracy_after: float = Field(description="test accuracy after it")
    seed: int
    epochs: int | None = Field(default=None, description="epochs of the search, rounds included")
    finetune_epochs: int | None = None
    seconds: float = Field(description="how long the run worked, all its processes added up")
    seconds_search: float
    ticket: Path = Field(description="the file of the ticket that the search found")
    finetuned: Path = Field(description="the file of the ticket with trained weights")
    ladder: list[Level] = Field(default=[], description="the levels of an iterative search")
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
        """Load the ticket that the search found."""
        return Ticket.load(self.ticket, within=self.run_dir)

    def load_finetuned(self) -> Ticket:
        """Load the ticket with trained weights."""
        return Ticket.load(self.finetuned, within=self.run_dir)

    def load_ladder(self) -> list[Ticket]:
        """Load the tickets of all levels, from dense to sparse."""
        return [Ticket.load(level.ticket, within=self.run_dir) for level in self.ladder]

    def to_data(self) -> dict[str, Any]:
        """Return plain data, as in result.json."""
        return self.model_dump(mode="json", exclude_unset=True)


def result_from(data: Mapping[str, Any]) -> RunResult:
    """Validate a result, which may come from a file."""
    result, problems = from_data(RunResult, data, label="result", title="a result")
    if result is None:
        raise report("the result of this run", problems)
    return result
