"""Parsl's interchange, which ends with its driver: `python interchange.py PARENT`.

Parsl's own outlives a driver that is killed, and keeps all workers alive. In a session of its own,
this one does not see the Ctrl-C of a terminal: it is the driver that stops the study. It is run as
a file, without gemkit.
"""

import os
import runpy
import sys
import threading
import time

_LOOK = 1.0
"""Seconds between two looks at whether the driver is alive."""


def main(parent: int) -> None:
    """Run the interchange until it ends, or the driver does."""
    os.setsid()
    threading.Thread(target=_end_with, args=[parent], daemon=True).start()
    runpy.run_module("parsl.executors.high_throughput.interchange", run_name="__main__")


def _end_with(parent: int) -> None:
    """End this process when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
