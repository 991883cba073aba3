"""What saving costs: the time of a checkpoint beside that of the epoch it ends.

    OMP_NUM_THREADS=1 python -m benchmarks.checkpoint [--model resnet20] [--steps 30] [--saves 20]

A search with the default settings of `gemkit run` on images like CIFAR-10's: 45,000 of them make an
epoch, whose time is that of its steps, each taken as long as the median one. Saving writes to the
folder for temporary files and waits for the disk. At most one checkpoint is written at the end of
an epoch, and one every ten minutes.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

from gemkit import Data, Plan, Runtime, load_plugins
from gemkit.cli.options import BATCH_SIZE, CHECKPOINT_MINUTES
from gemkit.models.part import ModelPart
from gemkit.pruning.search import search
from gemkit.training.checkpointer import DiskCheckpointer

IMAGES = 45_000


class Enough(Exception):  # noqa: N818
    """Everything is measured."""


class Clock(DiskCheckpointer):
    """Times every step, and then how long saving takes."""

    def __init__(self, folder: Path, saves: int, steps: int) -> None:
        super().__init__(folder, "benchmark")
        self.seconds: list[float] = []
        self.costs: list[float] = []
        self.saves, self.steps = saves, steps
        self._last = 0.0

    def maybe_save(self, *, epoch_ended: bool = False) -> None:
        """Note how long the step took; after the last one, save again and again."""
        now = time.perf_counter()
        if self._last:
            self.seconds.append(now - self._last)
        if len(self.seconds) == self.steps:
            for _ in range(self.saves):
                began = time.perf_counter()
                self._save()
                self.costs.append(time.perf_counter() - began)
            raise Enough
        self._last = time.perf_counter()


def measure(model: str, steps: int, saves: int) -> tuple[float, float, int]:
    """Return the median seconds of a step and of a checkpoint, and the checkpoint's bytes."""
    registry = load_plugins(only=[])
    part = registry.build("models", model)
    assert isinstance(part, ModelPart)
    samples = BATCH_SIZE * (steps + 2)
    images = torch.randint(0, 256, (samples, 3, 32, 32), dtype=torch.uint8)
    pair = (images, torch.arange(samples) % 10)
    few = (images[:10], pair[1][:10])
    data = Data.of_tensors(train=pair, validation=few, test=few)
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder), saves, steps)
        with suppress(Enough):
            search(
                registry.recipe("gem_miner"),
                part.build(data.shape, data.classes),
                data,
                plan=Plan(batch_size=BATCH_SIZE),
                runtime=Runtime(device="cpu"),
                checkpointer=clock,
            )
        size = clock.checkpoints.files()[0].stat().st_size
    return statistics.median(clock.seconds), statistics.median(clock.costs), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--saves", type=int, default=20)
    arguments = parser.parse_args()
    step, cost, size = measure(arguments.model, arguments.steps, arguments.saves)
    epoch = step * -(-IMAGES // BATCH_SIZE)
    often = 1 / epoch + 1 / (60 * CHECKPOINT_MINUTES)
    print(f"threads of torch  {torch.get_num_threads()}")
    print(f"step              {1000 * step:.1f} ms (median of {arguments.steps})")
    print(f"epoch             {epoch:.0f} s for {IMAGES:,} images")
    print(f"checkpoint        {1000 * cost:.1f} ms (median of {arguments.saves}), {size:,} bytes")
    print(f"share of the run  {100 * cost * often:.3f} % at most")


if __name__ == "__main__":
    main()
