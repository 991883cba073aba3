"""How fast a folder of images is read, kept and handed out in augmented batches.

    OMP_NUM_THREADS=1 python -m benchmarks.loader PATH [--repeats 7] [--batch-size 128]

The cache goes into a folder of its own and is thrown away, so the first load decodes every image.
Batches are random crops and flips, each sample its own; the median epoch counts. Rates are per
second of CPU time, which other programs on the machine hardly change; with one thread and a core
to itself that is the time on the clock.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch

from gemkit.data.folders import ImageFolder
from gemkit.data.source import Data, Source


def timed_load(path: str) -> tuple[Data, str]:
    clock, cpu = time.perf_counter(), time.process_time()
    data = ImageFolder(path=path, memory="always").load(None)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    return data, f"{cpu:.1f} s of CPU time, {clock:.1f} s on the clock"


def rates(source: Source, batch_size: int, repeats: int) -> list[float]:
    """Images per second of CPU time over whole epochs; the first warms up and is left out."""
    found = []
    for epoch in range(repeats + 1):
        began = time.process_time()
        for _ in source.batches(batch_size, seed=0, epoch=epoch, augment=True):
            pass
        found.append(len(source) / (time.process_time() - began))
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=128)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GEMKIT_CACHE"] = cache
        data, first = timed_load(arguments.path)
        _, again = timed_load(arguments.path)
    print(data)
    print(f"threads of torch     {torch.get_num_threads()}")
    print(f"first load           {first}")
    print(f"load from the cache  {again}")
    found = rates(data.train, arguments.batch_size, arguments.repeats)
    low, high = min(found), max(found)
    print(
        f"augmented batches    {statistics.median(found):,.0f} images/s "
        f"(median of {len(found)} epochs, {low:,.0f} to {high:,.0f})"
    )


if __name__ == "__main__":
    main()
