"""How a run is carried out, beside what it is: nothing here changes the ticket it finds."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Manner(BaseModel):
    """What a run remembers for being resumed; it may be another way then."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    data_dir: str | None = Field(default=None, description="where data sets are kept")
    observers: list[str] = Field(default=[], description="observers that listen")
    checks: list[str] = Field(default=[], description="controls to compare with afterwards")
    check_seeds: int = Field(default=5, ge=1, le=10_000, description="seeds to compare over")
    checkpoint_minutes: float = Field(
        default=10.0, ge=0, description="how long to go on at most without saving"
    )
    plugins: list[str] = Field(
        default=[], description="plugin files that were given; they are named, never loaded"
    )

    @property
    def folder(self) -> Path | None:
        """Where data sets are kept, as a path."""
        return None if self.data_dir is None else Path(self.data_dir)

    def to_data(self) -> dict[str, Any]:
        """Return plain data, ready for TOML."""
        return self.model_dump(exclude_none=True)
