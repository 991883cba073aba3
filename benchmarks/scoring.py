"""What measuring a score costs, as a multiple of one training step, and ProsPr's memory.

    python -m benchmarks.scoring [--repeats 5] [--threads 2]

Scores are those of a ResNet-20 on batches of 128, with the data each method asks for. Methods and
training steps take turns in one process, so that a busy machine slows them alike; the ratio of
medians is what counts. Peak memory is that of a process of its own.
"""

import argparse
import resource
import statistics
import subprocess
import sys

import torch
from torch import nn

from benchmarks.step import batch_of, dense_step, race
from gemkit import importance, load_plugins
from gemkit.models.cifar_resnet import ResNet20
from gemkit.parts import Scores

METHODS = ("magnitude", "snip", "grasp", "synflow", "prospr")
SHAPE, SIZE = (3, 32, 32), 128


def network() -> nn.Module:
    torch.manual_seed(0)
    return ResNet20().build(SHAPE, 10)


def batches_for(scores: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """As many batches as the method asks the engine for; balanced ones share 10 per class."""
    part = load_plugins().build("scores", scores)
    assert isinstance(part, Scores)
    wanted = part.batches_wanted()
    size = SIZE if wanted.per_class is None else 10 * wanted.per_class // wanted.batches
    return [batch_of(size, SHAPE) for _ in range(max(1, wanted.batches))]


def costs(repeats: int) -> None:
    steps = {"training step": dense_step(network(), batch_of(SIZE, SHAPE))}
    for scores in METHODS:
        model, batches = network(), batches_for(scores)
        steps[scores] = lambda s=scores, m=model, b=batches: importance(s, m, b)
    times = {name: statistics.median(own) for name, own in race(steps, repeats).items()}
    print(f"{'one scoring':16} {'median ms':>10} {'÷ training step':>16}")
    for name, median in times.items():
        print(f"{name:16} {1e3 * median:10.1f} {median / times['training step']:16.2f}")


def peak_of(steps: int) -> float:
    """Score with ProsPr in a process of its own and return its peak memory in megabytes."""
    command = [sys.executable, "-m", "benchmarks.scoring", "--peak", str(steps)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(steps: int) -> None:
    importance("prospr", network(), [batch_of(SIZE, SHAPE)] * (steps + 1), steps=steps)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak is not None:
        return print_peak(arguments.peak)
    costs(arguments.repeats)
    one, ten = peak_of(1), peak_of(10)
    print(f"\nProsPr's peak memory: {one:.0f} MB for 1 step, {ten:.0f} MB for 10: {ten / one:.2f}×")


if __name__ == "__main__":
    main()
