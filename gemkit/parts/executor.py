"""Executors: where the stages of a study run."""

from abc import abstractmethod
from concurrent.futures import Executor

from gemkit.parts.part import Part


class StudyExecutor(Part):
    """A place where the stages of a study run: processes of this machine, or a cluster.

    It has no memory: the store on disk is the truth, and a stage that is submitted twice runs once.
    """

    @abstractmethod
    def jobs(self, threads: int, devices: int) -> int:
        """Return how many stages run at once, each with so many threads and devices."""

    @abstractmethod
    def start(self, jobs: int, threads: int, devices: int) -> Executor:
        """Return an executor for so many stages at once.

        Its `submit` takes a function that can be imported, and plain data. A worker that dies is an
        exception of its future, and no other future's. `shutdown(cancel_futures=True)` also asks
        running stages to save and stop.
        """
