"""The result of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gemkit.parts.options import from_data, report
from gemkit.parts.recipe import PART_NAME
from gemkit.tickets.ticket import Ticket
from gemkit.training.metrics import ACCURACY, Metric, values_of

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Value = Annotated[float, Field(ge=-1e100, le=1e100)]
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
    accuracy_before: Share | None = None
    accuracy_after: Share | None = None
    metric: Annotated[str, Field(pattern=f"^{PART_NAME}$", max_length=100)] = ACCURACY.name
    higher_is_better: bool = True
    before: Value | None = None
    after: Value | None = None
    seed: Count
    seconds: Seconds
    seconds_search: Seconds
    ticket: str
    run_dir: str
    ladder: list[StoredLevel] = []
    model: StoredNetwork

    @model_validator(mode="after")
    def _measured(self) -> Self:
        """Refuse a result without values; older files have accuracies alone."""
        for moment in ("before", "after"):
            if getattr(self, moment) is None and getattr(self, f"accuracy_{moment}") is None:
                raise ValueError(f"it has neither {moment} nor accuracy_{moment}")
        return self


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
    value: float | None = Field(
        default=None, description="the metric of the run, where that is not accuracy"
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
    metric: str = Field(default=ACCURACY.name, description="the name of what was measured")
    higher_is_better: bool = Field(default=True, description="whether more of it is better")
    before: float | None = Field(default=None, description="the metric before fine-tuning (test)")
    after: float | None = Field(default=None, description="the metric after it")
    accuracy_before: float | None = Field(
        default=None, description="the same, where the metric is accuracy"
    )
    accuracy_after: float | None = None
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


def measured(metric: Metric, before: float, after: float) -> dict[str, Any]:
    """Return what files say of a metric; accuracies have names of their own."""
    own = {"accuracy_before": before, "accuracy_after": after} if metric is ACCURACY else {}
    direction = {"metric": metric.name, "higher_is_better": metric.higher_is_better}
    return {**own, **direction, "before": before, "after": after}


def result_from(data: Mapping[str, Any]) -> RunResult:
    """Validate a result, which may come from a file."""
    data = {**data, **values_of(data)}
    result, problems = from_data(RunResult, data, label="result", title="a result")
    if result is None:
        raise report("the result of this run", problems)
    return result
