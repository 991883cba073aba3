"""Whether tickets of timm's families mean something: signal, labels and collapse, one row each.

    python -m benchmarks.families

Each network is built twice, as timm builds it and ready for pruning at initialization. The table
says how many prunable layers get no gradient, or next to none, both ways; then, of the network that
is ready, in how many layers SNIP's importance and the mask of a short Gem-Miner search do not
depend on the labels, and how SynFlow ends. Results are appended to benchmarks/results, and networks
that are there already are not tried again. The table is written into docs/models.md.
"""

import argparse
import contextlib
from pathlib import Path

import torch

from benchmarks.trial import RESULTS
from gemkit import Data, Plan, Runtime, Tensors, importance, load_plugins, prunable_names, search
from gemkit.core.errors import GemkitError
from gemkit.core.events import Collapsed, Event
from gemkit.core.probe import Batch
from gemkit.models.part import ModelPart
from gemkit.models.signal import trace
from gemkit.report.pages import write_results
from gemkit.study.store import Ledger, Row

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
CLASSES = 4
SMALL = 256
"""Layers with fewer weights may end a short search with the same mask by chance."""

IN_CI = {
    "resnet10t": 32,
    "regnety_002": 32,
    "gmlp_ti16_224": 32,
    "cait_xxs24_224": 32,
    "convnext_atto": 32,
    "levit_128s": 64,
    "test_vit": 32,
    "mobilenetv3_small_050": 32,
}
"""Networks and the size of the images they are tried on."""

FAMILIES = IN_CI | {
    "resnet18": 32,
    "resnet50": 32,
    "resnext50_32x4d": 32,
    "resnetv2_18": 32,
    "res2net50_14w_8s": 32,
    "resnest14d": 64,
    "skresnet18": 32,
    "legacy_seresnet18": 32,
    "mixer_s32_224": 64,
    "resmlp_12_224": 32,
    "vit_tiny_patch16_224": 32,
    "deit_tiny_patch16_224": 32,
    "beit_base_patch16_224": 32,
    "eva02_tiny_patch14_224": 28,
    "xcit_nano_12_p16_224": 32,
    "poolformer_s12": 64,
    "swin_tiny_patch4_window7_224": 56,
    "swinv2_cr_tiny_224": 64,
    "tiny_vit_5m_224": 64,
    "fastvit_t8": 64,
    "edgenext_xx_small": 64,
    "mobilevit_xxs": 64,
    "repvit_m1": 64,
    "shvit_s1": 128,
    "inception_next_atto": 64,
    "efficientnet_b0": 32,
    "ghostnet_050": 64,
    "densenet121": 32,
    "vgg11": 32,
    "dla46x_c": 64,
    "cs3darknet_focus_s": 64,
    "sequencer2d_s": 64,
}


def batch_for(size: int, seed: int = 0) -> Batch:
    """Draw images of noise, and a label for each."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(8, 3, size, size, generator=rng), torch.arange(8) % CLASSES


def measure(run: Row) -> Row:
    """Look at one network, as timm builds it and ready for pruning."""
    registry, (images, labels) = load_plugins(only=[]), batch_for(run["size"])
    row = dict(run)
    for key, ready in (("as_built", False), ("prepared", True)):
        part = registry.build("models", f"timm:{run['network']}", {"prepare": ready})
        assert isinstance(part, ModelPart)
        torch.manual_seed(0)
        model = part.build((3, run["size"], run["size"]), CLASSES)
        names = prunable_names(model)
        found = trace(model, names, (images, labels))
        row[key] = {
            "dead": len(found.dead),
            "faint": len(found.faint),
            "unused": len(found.unused),
            "constant": found.constant,
        }
    others = labels.flip(0)
    snip = [importance("snip", model, [(images, own)], mode="train") for own in (labels, others)]
    masks = [_gem_miner(model, images, own) for own in (labels, others)]
    return row | {
        "layers": len(names),
        "snip_same": _same(*snip),
        "gem_miner_same": _same(*masks, least=SMALL),
        "synflow": _synflow(model, images, labels),
    }


def _same(one: Tensors, other: Tensors, least: int = 0) -> int:
    """Count the layers, of so many weights at least, in which two results are equal."""
    return sum(bool((one[name] == other[name]).all()) for name in one if one[name].numel() >= least)


def _gem_miner(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Tensors:
    """Return the mask of a short Gem-Miner search."""
    recipe = load_plugins(only=[]).recipe(
        "gem_miner", parts={"allocation": "uniform"}, options={"schedule.every": 1}
    )
    data = Data.of_tensors(train=(images, labels), test=(images, labels), classes=CLASSES)
    plan = Plan(epochs=2, batch_size=4, lr=20.0)
    ticket = search(
        recipe, model, data, density=0.3, plan=plan, runtime=Runtime(device="cpu"),
        on_collapse="warn",
    )  # fmt: skip
    return ticket.mask


def _synflow(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> str:
    """Say how a SynFlow of five rounds ends."""
    recipe = load_plugins(only=[]).recipe("synflow", options={"schedule.rounds": 5})
    data = Data.of_tensors(train=(images, labels), test=(images, labels), classes=CLASSES)
    events: list[Event] = []
    runtime = Runtime(device="cpu")
    with contextlib.suppress(GemkitError):
        search(
            recipe, model, data, density=0.2, runtime=runtime,
            on_collapse="warn", observers=[events.append],
        )  # fmt: skip
        collapsed = any(isinstance(event, Collapsed) for event in events)
        return "collapse reported" if collapsed else "ticket"
    return "refused"


def table(rows: list[Row]) -> str:
    """Draw the results as a Markdown table."""
    lines = [
        "| network | layers | no gradient, as built | faint, as built | no gradient, prepared | "
        "faint, prepared | SNIP ignores labels | Gem-Miner ignores labels | SynFlow |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        built, ready = row["as_built"], row["prepared"]
        cells = [
            f"`{row['network']}`",
            row["layers"],
            f"{built['dead']}{' ¹' if built['constant'] else ''}",
            built["faint"],
            f"{ready['dead']}{' ¹' if ready['constant'] else ''}",
            ready["faint"],
            row["snip_same"],
            row["gem_miner_same"],
            row["synflow"],
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def ledger() -> Ledger:
    """Open the file of results."""
    return Ledger(RESULTS / "families.jsonl", ("network", "size"))


def planned() -> list[Row]:
    """List the networks to look at."""
    return [{"network": network, "size": size} for network, size in FAMILIES.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    arguments = parser.parse_args()
    results = ledger()
    results.complete(planned(), measure, arguments.jobs)
    write_results(PAGE, "families", table(results.of(planned())))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
