"""Networks of your own: `--model package.module:function`, called as `function(shape, classes)`.

Naming a function means importing its module, which runs code. So it is done only for a name that
somebody typed: this part is not registered, and nothing a file says can lead here.
"""

import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from gemkit.errors import ModelError, did_you_mean
from gemkit.models.blocks import Shape
from gemkit.models.foreign import ForeignNet, first_line
from gemkit.parts import Part
from gemkit.recipe import part_data
from gemkit.wording import number_of

_WORD = r"[^\W\d]\w*"
_ADDRESS = rf"{_WORD}(\.{_WORD})*:{_WORD}"


class Custom(ForeignNet):
    """A network that a function of yours builds."""

    name: ClassVar[str] = "custom"
    argument: ClassVar[str | None] = "function"

    function: str = Field(
        pattern=f"^{_ADDRESS}$", description="package.module:function, called with shape, classes"
    )

    @property
    def title(self) -> str:
        """Whose network it is."""
        return f"the network of {self.function}"

    def create(self, shape: Shape, classes: int, *, with_weights: bool) -> nn.Module:
        """Call the function; whether it loads weights is its own affair."""
        function = self._function()
        try:
            model = function(shape, classes)
        except Exception as error:  # it is somebody's own code
            raise ModelError(
                f"{self.function} failed when called with the shape {shape} and "
                f"{number_of(classes, 'class', 'classes')}: {first_line(error)} ({_where(error)})"
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"{self.function} returned something of type {type(model).__name__}; "
                "it should return a torch.nn.Module"
            )
        return model

    def _function(self) -> Callable[[Shape, int], object]:
        """Find the function, and refuse whatever cannot be called."""
        address, _, name = self.function.partition(":")
        module = self._module(address)
        if not hasattr(module, name):
            known = (one for one in vars(module) if not one.startswith("_"))
            raise ModelError(
                f"{address} has no '{name}' to build a model{did_you_mean(name, known)}"
            )
        function: Callable[[Shape, int], object] = getattr(module, name)
        if not callable(function):
            raise ModelError(
                f"{self.function} is something of type {type(function).__name__}; it should be a "
                "function that takes the shape of an image and the number of classes"
            )
        return function

    def _module(self, address: str) -> ModuleType:
        """Import a module, also from the current folder."""
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            return import_module(address)
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and f"{address}.".startswith(f"{missing}."):
                raise ModelError(
                    f"there is no module {missing} for model {self.function}: neither installed "
                    f"nor in {here}; `gemkit parts models` lists the models that have a name"
                ) from error
            raise ModelError(
                f"{address} cannot be imported for model {self.function}: {first_line(error)} "
                f"({_where(error)})"
            ) from error


def is_address(text: str) -> bool:
    """Tell whether a text could be `package.module:function`."""
    return re.fullmatch(_ADDRESS, text) is not None


def model_data(part: Part) -> dict[str, Any]:
    """Return what tickets and configurations say about a network.

    One of somebody's own has no name there, only an address: what has no name is not built.
    """
    data = part_data(part)
    if not data.get("prepare", True):
        del data["prepare"]  # as in files from before there was this field
    if not isinstance(part, Custom):
        return data
    rest = {key: value for key, value in data.items() if key not in {"name", "function"}}
    return {"custom": part.function, **rest}


def _where(error: BaseException) -> str:
    """Say in which line of which file it happened."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"
