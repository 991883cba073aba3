"""Data sets as parts."""

from abc import abstractmethod
from pathlib import Path

from gemkit.core.errors import DataError
from gemkit.data.source import Data
from gemkit.parts.part import Part


class DatasetPart(Part):
    """A data set that is loaded from disk or generated."""

    @abstractmethod
    def load(self, folder: Path | None) -> Data:
        """Load the data set; `folder` is `--data-dir`, where the user keeps data sets."""

    def download(self, folder: Path | None) -> None:
        """Download the data set to where `load` finds it; called only with `--download`."""
        raise DataError(f"data set '{self.name}' cannot be downloaded; leave out --download")
