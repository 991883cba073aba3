"""What a result must say, for a run that is done to be told again."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0)]


class Network(BaseModel):
    """The network of a result, which may be somebody's own."""

    model_config = ConfigDict(frozen=True, strict=True)

    custom: str = ""


class Rung(BaseModel):
    """A ticket on the way, where there are some."""

    model_config = ConfigDict(frozen=True, strict=True)

    ticket: str


class Outcome(BaseModel):
    """The part of a result that gemkit itself reads; all the rest is for people."""

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
    ladder: list[Rung] = []
    model: Network
