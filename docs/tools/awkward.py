"""The table of awkward models in the documentation: each works, or is refused in a sentence.

`python -m docs.tools.awkward docs/models.md` runs all of them and updates the table in place.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from docs.tools.awkward_models import MODELS, Shape
from gemkit import Data, GemkitError, GemkitWarning, Plan, Runtime, evaluate, finetune, search
from gemkit.report.pages import write_results

SHAPE, CLASSES = (2, 6, 6), 3
PLAN, CPU = Plan(epochs=1, batch_size=16), Runtime(device="cpu")
NAME = "awkward-models"


def data() -> Data:
    """Make a few random inputs."""
    rng = torch.Generator().manual_seed(0)
    pair = torch.randn(32, *SHAPE, generator=rng), torch.arange(32) % CLASSES
    return Data.of_tensors(train=pair, validation=pair, test=pair, classes=CLASSES)


def outcome(build: Callable[[Shape, int], nn.Module]) -> str:
    """Search, fine-tune and evaluate with a model; return what a user reads."""
    torch.manual_seed(0)
    model = build(SHAPE, CLASSES)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", GemkitWarning)
        try:
            ticket = search("snip", model, data(), density=0.5, runtime=CPU)
            trained = finetune(ticket, model, data(), plan=PLAN, runtime=CPU)
            evaluate(trained, model, data(), runtime=CPU)
            trained.apply(model)
        except GemkitError as error:
            return f"refused: {error}".replace("\n", " ")
    texts = [str(one.message) for one in noted if issubclass(one.category, GemkitWarning)]
    return f"works; warning: {'; '.join(texts)}" if texts else "works"


def table() -> str:
    """Return the table as Markdown."""
    rows = ["| model | outcome |", "|---|---|"]
    for build in MODELS:
        title = (build.__doc__ or "").rstrip(".")
        rows.append(f"| {title} | {outcome(build).replace('|', '&#124;')} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> None:
    """Update the table on a page."""
    write_results(Path(arguments[0]), NAME, table())


if __name__ == "__main__":
    main(sys.argv[1:])
