"""One training step of a search, as a multiple of one step of plain dense PyTorch.

    python -m benchmarks.step [--repeats 15] [--threads 2]

Steps of all contenders are interleaved in one process, so that a busy machine slows them alike;
the ratio of medians is what counts, the milliseconds are not.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from torch import nn

from gemkit import Plan, Runtime, load_plugins
from gemkit.freezing import freeze
from gemkit.masking import ScoredNet
from gemkit.models.cifar_resnet import ResNet20
from gemkit.tensors import generator, prunable_names
from gemkit.training import Trainer, make_fabric, place

PRUNERS = ("gem_miner", "edge_popup", "global_ep")
Step = Callable[[], None]


def networks() -> dict[str, tuple[Callable[[], nn.Module], int, tuple[int, int, int]]]:
    return {
        "resnet20, batch 128": (lambda: ResNet20().build((3, 32, 32), 10), 128, (3, 32, 32)),
        "timm resnet50, batch 16 at 64×64": (
            lambda: timm.create_model("resnet50", num_classes=10),
            16,
            (3, 64, 64),
        ),
    }


def batch_of(size: int, shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(size, *shape).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(0, 10, (size,))


def dense_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """What anybody would write without gemkit."""
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def search_step(pruner: str, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """The engine's own step, after a freeze, at density 0.05."""
    runtime = Runtime(device="cpu")
    recipe = load_plugins().recipe(pruner)
    fabric = make_fabric(runtime)
    net = ScoredNet(
        place(model, fabric, runtime), prunable_names(model), recipe, generator(0, "scores")
    )
    freeze(net, recipe, 0.05, net.view)
    trainer = Trainer(net, Plan(lr=1e-3), fabric, runtime)
    trainer.module.train()
    return lambda: trainer.step(batch, lr=1e-3)


def race(steps: dict[str, Step], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if turn >= 2:  # the first two warm up
                times[name].append(time.perf_counter() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{'network':34} {'step':12} {'median ms':>10} {'÷ dense':>8}   quartiles of the ratio")
    for network, (build, size, shape) in networks().items():
        torch.manual_seed(0)
        batch = batch_of(size, shape)
        steps = {"dense": dense_step(build(), batch)}
        steps |= {pruner: search_step(pruner, build(), batch) for pruner in PRUNERS}
        times = race(steps, arguments.repeats)
        for name, own in times.items():
            ratios = [mine / dense for mine, dense in zip(own, times["dense"], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            median = statistics.median(own)
            ratio = median / statistics.median(times["dense"])
            print(
                f"{network:34} {name:12} {1e3 * median:10.1f} {ratio:8.3f}   {low:.3f}–{high:.3f}"
            )


if __name__ == "__main__":
    main()
