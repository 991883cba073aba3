"""What a ticket records about its origin."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemkit.core.bounded import Classes, Count, Density, ImageShape, Name, Seed, Spec
from gemkit.core.limits import MAX_FREEZES
from gemkit.core.text import escaped, number_of
from gemkit.data.fingerprint import Fingerprint
from gemkit.training.plan import CollapsePolicy, Plan

_Tie = Annotated[list[Annotated[str, Field(max_length=512)]], Field(min_length=2, max_length=1_000)]
_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FreezeRecord(BaseModel):
    """One freeze of the search that found the ticket."""

    model_config = _STRICT

    step: Count = Field(description="the optimizer step before it")
    target: Density = Field(description="its target density")
    alive: Count = Field(description="how many weights were alive after it")
    kept: Count = Field(description="how many weights the mask kept after it")


class TicketInfo(BaseModel):
    """Where a ticket comes from: everything needed to repeat the search and rebuild the network.

    A mask that was found elsewhere has no recipe and no plan: its search cannot be repeated.
    """

    model_config = _STRICT

    pruner: Name = Field(description="the name of the pruner that found it")
    recipe: Spec | None = Field(
        description="the resolved recipe, as Recipe.to_data(); none for a mask from elsewhere"
    )
    model: Spec | None = Field(
        description="the network as part data, or {'custom': 'package.module:function'}"
    )
    dataset: Spec | None = Field(description="the data set as part data")
    shape: ImageShape | None = Field(
        description="the shape of the inputs the network was built for, such as (channels, height, "
        "width)"
    )
    classes: Classes | None = Field(
        description="the classes the network was built for, if targets are classes"
    )
    density_target: Density = Field(description="the target density of the search")
    seed: Seed = Field(description="the seed of the search")
    epochs: Count = Field(description="how many epochs the search trained")
    stage: Literal["found", "finetuned"] = Field(
        description="'found' by a search, or 'finetuned' since"
    )
    plan: Plan | None = Field(
        default=None, description="how the search trained, with every default written out"
    )
    versions: dict[Name, Name] = Field(
        max_length=1000, description="versions of gemkit, torch and every plugin used"
    )
    history: list[FreezeRecord] = Field(
        max_length=MAX_FREEZES, description="every freeze of the search, in order"
    )
    alive: Count | None = Field(
        default=None,
        description="how many weights were alive when the mask was chosen; it may keep fewer where "
        "scores are rounded",
    )
    partway: bool = Field(
        default=False,
        description="whether it was taken on the way to another density, or from a search that was "
        "stopped early, so that a search to its own density would find another ticket",
    )
    on_collapse: CollapsePolicy = Field(
        default="error", description="what the search did about a collapsed layer"
    )
    data: Fingerprint | None = Field(
        default=None,
        exclude_if=lambda data: data is None,  # so that older tickets keep their digest
        description="the fingerprint of the data of the search or the fine-tuning",
    )
    prune_frozen: bool = Field(
        default=False,
        exclude_if=lambda pruned: not pruned,
        description="whether frozen weights (requires_grad=False) were pruned too",
    )
    tied: list[_Tie] | None = Field(
        default=None,
        exclude_if=lambda tied: tied is None,
        max_length=10_000,
        description="groups of state names that share one parameter, if known",
    )
    objective: Spec | None = Field(
        default=None,
        exclude_if=lambda objective: objective is None,
        description="what scores, search and fine-tuning minimize, as part data; cross-entropy "
        "otherwise",
    )
    metric: Name | None = Field(
        default=None,
        exclude_if=lambda metric: metric is None,
        description="what is measured, if not the metric of the objective",
    )

    def made_for(self) -> str:
        """Describe the network that the ticket was made for."""
        model = self.model or {}
        text = str(model.get("name") or model.get("custom") or "a model without a name")
        if "network" in model:
            text += f":{model['network']}"
        if self.shape is not None:
            kind = "images" if len(self.shape) == 3 else "inputs"
            text += f" for {'x'.join(str(size) for size in self.shape)} {kind}"
        if self.classes is not None:
            text += f" and {number_of(self.classes, 'class', 'classes')}"
        return escaped(text)
