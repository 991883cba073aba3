"""Your own networks: `--model package.module:function`, called as `function(shape, classes)`.

Importing the module runs its code. So this part is not registered: only the user can name a
function, on the command line or in Python; a ticket or another file cannot.
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

from gemkit.core.errors import ModelError, describe_error, did_you_mean
from gemkit.core.text import number_of
from gemkit.models.blocks import Shape
from gemkit.models.check import check_model
from gemkit.models.external import ExternalNet
from gemkit.models.weights import load_weights_, read_weights
from gemkit.parts.part import Part
from gemkit.parts.recipe import part_data

_IDENTIFIER = r"[^\W\d]\w*"
_ADDRESS = rf"{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}"


class Custom(ExternalNet):
    """A network that your own function builds."""

    name: ClassVar[str] = "custom"
    argument: ClassVar[str | None] = "function"

    function: str = Field(
        pattern=f"^{_ADDRESS}$", description="package.module:function, called with shape, classes"
    )
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="start from the weights in this file: safetensors, or a .pth of tensors only",
    )

    @property
    def loads_weights(self) -> bool:
        """Whether the network starts from the weights in a file."""
        return self.weights is not None

    @property
    def title(self) -> str:
        """The network's name in messages."""
        return f"the network of {self.function}"

    def create(self, shape: Shape, classes: int, *, with_weights: bool) -> nn.Module:
        """Call the function, which may load weights itself, and load those of a file."""
        function = self._function()
        try:
            model = function(shape, classes)
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise ModelError(
                f"{self.function} failed when called with shape {shape} and "
                f"{number_of(classes, 'class', 'classes')}: {describe_error(error)} "
                f"({_location(error)})"
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"{self.function} returned a value of type {type(model).__name__}; "
                "it should return a torch.nn.Module"
            )
        model = check_model(model)
        if with_weights and self.weights is not None:
            load_weights_(
                model, read_weights(Path(self.weights)), self.weights, self.title, classes
            )
        return model

    def _function(self) -> Callable[[Shape, int], object]:
        """Import the function; refuse an object that is not callable."""
        address, _, name = self.function.partition(":")
        module = self._module(address)
        if not hasattr(module, name):
            known = (attribute for attribute in vars(module) if not attribute.startswith("_"))
            raise ModelError(
                f"{address} has no '{name}' to build a model{did_you_mean(name, known)}"
            )
        function: Callable[[Shape, int], object] = getattr(module, name)
        if not callable(function):
            raise ModelError(
                f"{self.function} is of type {type(function).__name__}; it should be a function "
                "that takes the shape of an image and the number of classes"
            )
        return function

    def _module(self, address: str) -> ModuleType:
        """Import a module, from the current folder too."""
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
                    f"nor in {here}; `gemkit parts models` lists the named models"
                ) from error
            raise ModelError(
                f"{address} cannot be imported for model {self.function}: "
                f"{describe_error(error)} ({_location(error)})"
            ) from error


def is_address(text: str) -> bool:
    """Whether a text has the form `package.module:function`."""
    return re.fullmatch(_ADDRESS, text) is not None


def model_data(part: Part) -> dict[str, Any]:
    """Return the data of a network for tickets and configurations.

    A custom network is recorded under `custom` and without a name, so that no file can build it.
    """
    data = part_data(part)
    if not data.get("prepare", True):
        del data["prepare"]  # as in files older than this field
    if not isinstance(part, Custom):
        return data
    rest = {key: value for key, value in data.items() if key not in {"name", "function"}}
    return {"custom": part.function, **rest}


def _location(error: BaseException) -> str:
    """Return file and line of an error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"
