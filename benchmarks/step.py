"""One training step of a search, or of fine-tuning, as a multiple of a step of dense PyTorch.

    python -m benchmarks.step [--network resnet50] [--steps gem_miner finetune] [--threads 2]
    python -m benchmarks.step --memory --network vgg16 [--steps gem_miner]

Steps of all contenders are interleaved in one process, in an order drawn anew every turn, so that
a busy machine slows them alike; the ratio of medians is what counts, the milliseconds are not.
On a machine that is very busy, `--processor --threads 1` counts the time on the processor instead.

`--memory` measures what the process holds at most during a step instead (Linux only): each
contender in a process of its own, less what the process held before the network was built.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, NamedTuple

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gemkit import Plan, Runtime, load_plugins
from gemkit.freezing import freeze
from gemkit.masking import MaskedNet
from gemkit.models.cifar_resnet import ResNet20
from gemkit.scored import ScoredNet
from gemkit.tensors import generator, prunable_names
from gemkit.training import Trainer, make_fabric, place

STEPS = ("gem_miner", "edge_popup", "global_ep", "finetune")
Batch = tuple[Tensor, Tensor]
Step = Callable[[], None]


class Setting(NamedTuple):
    """A network, and the images of a step."""

    build: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, int, int]

    def images(self) -> Batch:
        images = torch.randn(self.batch, *self.shape)
        return images.contiguous(memory_format=torch.channels_last), torch.randint(
            0, 10, (self.batch,)
        )


SETTINGS = {
    "resnet20, batch 128 at 32×32": Setting(
        lambda: ResNet20().build((3, 32, 32), 10), 128, (3, 32, 32)
    ),
    "timm resnet50, batch 16 at 64×64": Setting(
        lambda: timm.create_model("resnet50", num_classes=10), 16, (3, 64, 64)
    ),
    "vgg16, batch 8 at 32×32": Setting(lambda: vgg16(), 8, (3, 32, 32)),
}


def vgg16() -> nn.Module:
    """Thirteen convolutions with batch norm, and one linear layer, as usual for small images."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def dense_step(model: nn.Module, batch: Batch) -> Step:
    """What anybody would write without gemkit."""
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gemkit_step(what: str, model: nn.Module, batch: Batch) -> Step:
    """The engine's own step, after a freeze, at density 0.05."""
    runtime = Runtime(device="cpu")
    recipe = load_plugins().recipe("magnitude" if what == "finetune" else what)
    fabric = make_fabric(runtime)
    model, names = place(model, fabric, runtime), prunable_names(model)
    if what == "finetune":
        net = MaskedNet(model, names)
        freeze(net, recipe, 0.05, {name: w.abs() for name, w in net.effective.items()})
    else:
        net = ScoredNet(model, names, recipe, generator(0, "scores"))
        freeze(net, recipe, 0.05, net.view)
    trainer = Trainer(net, Plan(lr=1e-3), fabric, runtime)
    trainer.module.train()
    return lambda: trainer.step(batch, lr=1e-3)


def step_of(what: str, setting: Setting, batch: Batch) -> Step:
    if what == "dense":
        return dense_step(setting.build(), batch)
    return gemkit_step(what, setting.build(), batch)


def race(
    steps: dict[str, Step], repeats: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 2):
        for name in random.sample(list(steps), len(steps)):
            began = clock()
            steps[name]()
            if turn >= 2:  # the first two warm up
                times[name].append(clock() - began)
    return times


def report_times(
    title: str, setting: Setting, names: list[str], repeats: int, clock: Callable[[], float]
) -> None:
    batch = setting.images()
    times = race({name: step_of(name, setting, batch) for name in names}, repeats, clock)
    for name, own in times.items():
        ratios = [mine / dense for mine, dense in zip(own, times["dense"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        median = statistics.median(own)
        ratio = median / statistics.median(times["dense"])
        print(
            f"{title:34} {name:12} {1e3 * median:8.1f} ms {ratio:7.3f} × dense "
            f"(quartiles of the turns {low:.3f}–{high:.3f})"
        )


def held(what: Literal["VmRSS", "VmHWM"]) -> int:
    """Return the bytes this process holds, or has held at most."""
    (line,) = [line for line in Path("/proc/self/status").read_text().split("\n") if what in line]
    return 1024 * int(line.split()[1])


def highest(title: str, name: str, threads: int) -> float:
    """Return the most that a process holds during a step, in numbers per parameter."""
    torch.set_num_threads(threads)
    setting, before = SETTINGS[title], held("VmRSS")
    step = step_of(name, setting, setting.images())
    for _ in range(2):
        step()
    Path("/proc/self/clear_refs").write_text("5")  # forget how much it was so far
    step()
    most = held("VmHWM") - before
    return most / 4 / sum(parameter.numel() for parameter in setting.build().parameters())


def report_memory(title: str, names: list[str], threads: int) -> None:
    for name in names:
        with get_context("spawn").Pool(1) as alone:
            most = alone.apply(highest, (title, name, threads))
        print(f"{title:34} {name:12} {most:8.2f} floats per parameter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--network", default="", help="only networks with this in their name")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--memory", action="store_true", help="measure memory, not time")
    parser.add_argument("--processor", action="store_true", help="count time on the processor")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.processor else time.perf_counter
    torch.set_num_threads(arguments.threads)
    random.seed(0)
    for title, setting in SETTINGS.items():
        names = ["dense", *arguments.steps]
        if arguments.network in title and arguments.memory:
            report_memory(title, names, arguments.threads)
        elif arguments.network in title:
            torch.manual_seed(0)
            report_times(title, setting, names, arguments.repeats, clock)


if __name__ == "__main__":
    main()
