"""The tables of awkward models and data in the documentation: each works, or is a sentence.

`python -m docs.tools.awkward docs/models.md` or `docs/data.md` runs them all and updates the table
in place.
"""

import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from docs.tools.awkward_data import DATA
from docs.tools.awkward_models import MODELS, Shape, plain
from gemkit import Data, GemkitError, GemkitWarning, Plan, Runtime, evaluate, finetune, search
from gemkit.report.pages import write_results

SHAPE, CLASSES = (2, 6, 6), 3
PLAN, CPU = Plan(epochs=1, batch_size=16), Runtime(device="cpu")
NAME, NAME_OF_DATA = "awkward-models", "awkward-data"


def data() -> Data:
    """Make a few random inputs."""
    rng = torch.Generator().manual_seed(0)
    pair = torch.randn(32, *SHAPE, generator=rng), torch.arange(32) % CLASSES
    return Data.of_tensors(train=pair, validation=pair, test=pair, classes=CLASSES)


def outcome(build: Callable[[Shape, int], nn.Module]) -> str:
    """Search, fine-tune and evaluate with a model; return what a user reads."""
    torch.manual_seed(0)
    model = build(SHAPE, CLASSES)
    return _told(lambda: (data(), model), PLAN)


def outcome_of_data(make: Callable[[], Any]) -> str:
    """Do the same with a data object."""

    def made() -> tuple[Any, nn.Module]:
        torch.manual_seed(0)
        own = make()
        if isinstance(own, tuple) and isinstance(own[1], nn.Module):
            return own[0], own[1]
        return own, plain(own.shape if isinstance(own, Data) else (6,), CLASSES)

    return _told(made, Plan(epochs=1))


def _told(make: Callable[[], tuple[Any, nn.Module]], plan: Plan) -> str:
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", GemkitWarning)
        try:
            own, model = make()
            ticket = search("snip", model, own, density=0.5, runtime=CPU)
            trained = finetune(ticket, model, own, plan=plan, runtime=CPU)
            evaluate(trained, model, own, runtime=CPU)
            trained.apply(model)
        except GemkitError as error:
            return f"refused: {error}".replace("\n", " ")
    texts = [str(one.message) for one in noted if issubclass(one.category, GemkitWarning)]
    return f"works; warning: {'; '.join(texts)}" if texts else "works"


def table(head: str, things: Iterable[Callable[..., Any]], tried: Callable[[Any], str]) -> str:
    """Return a table as Markdown."""
    rows = [f"| {head} | outcome |", "|---|---|"]
    for make in things:
        title = (make.__doc__ or "").rstrip(".")
        rows.append(f"| {title} | {tried(make).replace('|', '&#124;')} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> None:
    """Update the table on a page: of data on data.md, of models on any other."""
    page = Path(arguments[0])
    if page.name == "data.md":
        write_results(page, NAME_OF_DATA, table("data", DATA, outcome_of_data))
    else:
        write_results(page, NAME, table("model", MODELS, outcome))


if __name__ == "__main__":
    main(sys.argv[1:])
