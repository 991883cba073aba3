"""The records that a report is made of: one for each seed of each cell of a study.

Records come from files, which are untrusted: sizes have limits, numbers are finite, and control
characters and bytes that are not UTF-8 in names are escaped here, once for all formats.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
)

from gemkit.core.errors import OptionError
from gemkit.core.limits import MAX_EPOCHS, MAX_NAME_LENGTH, MAX_TENSORS, MAX_TEXT_LENGTH
from gemkit.core.text import escaped
from gemkit.training.metrics import ACCURACY, METRICS, Metric

MAX_RECORDS = 100_000
_LARGEST = 1e100


def _unicode(value: object) -> object:
    """Escape bytes of a path that are not UTF-8, which Python keeps as lone surrogates."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH), AfterValidator(escaped)]
Text = Annotated[
    str, BeforeValidator(_unicode), Field(max_length=MAX_TEXT_LENGTH), AfterValidator(escaped)
]
Value = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=_LARGEST)]
State = Literal["done", "partial", "failed", "missing"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Moment(_Data):
    """The end of an epoch: validation metric, density of the mask, and λ if there is a penalty."""

    epoch: Annotated[float, Field(ge=0, le=MAX_EPOCHS * 1000)]
    metric: Value | None = None
    density: Share | None = None
    strength: Value | None = None


class Curves(_Data):
    """What both phases measured after every epoch."""

    search: list[Moment] = []
    finetune: list[Moment] = []


class Control(_Data):
    """The metric of a control, before and after fine-tuning."""

    before: Value | None = None
    after: Value | None = None


class Record(_Data):
    """One seed of one cell; whatever was not measured is missing."""

    study: Text = ""
    variant: Text | None = None
    pruner: Name = "?"
    density: Share = Field(description="the target")
    model: Text = "?"
    dataset: Text = "?"
    seed: Count = 0
    axes: dict[Name, JsonValue] = {}
    config: dict[str, JsonValue] = {}
    key: Text = ""
    metric: Name = ACCURACY.name
    higher_is_better: bool = True
    before: Value | None = None
    after: Value | None = None
    kept: Count | None = None
    prunable: Count | None = None
    layers: Annotated[list[tuple[Name, Count, Count]], Field(max_length=MAX_TENSORS)] = []
    controls: dict[Name, Control] = {}
    unmade: dict[Name, Text] = {}
    measurements: dict[Name, dict[Name, Value]] = {}
    curves: Curves = Curves()
    bound: list[tuple[float, Share]] = []
    search_epochs: Annotated[float, Field(ge=0, le=_LARGEST)] | None = None
    seconds: Seconds | None = None
    cpu_seconds: Seconds | None = None
    collapse: Text | None = None
    problem: Text | None = Field(default=None, description="why it failed")
    state: State = "done"
    ticket: Text | None = None

    @property
    def actual(self) -> float | None:
        """The actual density: the fraction of the prunable weights that is kept."""
        return None if self.kept is None or not self.prunable else self.kept / self.prunable

    @property
    def collapsed(self) -> bool:
        """Whether all is done, without a result: no signal passes the network."""
        return self.state == "done" and self.after is None and self.collapse is not None

    def kind(self) -> Metric:
        """Return the metric, by its name or as the record describes it."""
        return METRICS.get(self.metric) or unknown(self.metric, self.higher_is_better)


def unknown(name: str, higher_is_better: bool = True) -> Metric:
    """Return a metric that gemkit does not know, to show its values."""
    return Metric(name, higher_is_better, False, "any", ACCURACY.make)


def records_from(data: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Validate records; refuse them in one sentence that names the first that is wrong."""
    records = []
    for number, one in enumerate(data, 1):
        if number > MAX_RECORDS:
            raise OptionError(f"a report takes at most {MAX_RECORDS:,} records; report on a part")
        try:
            records.append(Record.model_validate(one))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = escaped(".".join(map(str, first["loc"])))
            raise OptionError(
                f"record {number} cannot be reported: {place}: {first['msg']}; remove that result, "
                "or run it again"
            ) from error
    return records


def leaves(config: Mapping[str, JsonValue], above: str = "") -> dict[str, str]:
    """Return the settings of a configuration as dotted name -> text."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        path = escaped(f"{above}{name}")
        if isinstance(value, dict):
            flat |= leaves(value, f"{above}{name}.")
        else:
            flat[path] = escaped(value if isinstance(value, str) else json.dumps(value))
    return flat
