"""Parts: small frozen classes whose fields are their options.

A part holds settings, never tensors; its docstring is its help; its `name` is what users type.
Every kind of part is an abstract class. To write a new part, subclass the kind, give it a
`name`, a docstring, described fields and the abstract methods, and return the class from the
kind's hook (see `gemkit.plugins.hookspecs`).
"""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from gemkit.core.tensors import Tensors


class Part(BaseModel):
    """A named, immutable choice; its fields are strict, bounded and described."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: ClassVar[str]
    argument: ClassVar[str | None] = None
    """The field that `name:value` on the command line sets, if a part has one."""

    def init_state(self, weights: Tensors) -> Tensors:
        """Return the initial state of the part: what it keeps from step to step.

        Tensors by name, on the device of the weights. They are saved and resumed with the run, and
        passed to the part as `now.state`, to be changed in place. A part is frozen and stores
        nothing in attributes. Only regularizers and objectives may have a state.
        """
        return {}

    def inner(self) -> dict[str, "Part"]:
        """Return the parts within the part, by field."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if isinstance(value, Part)}
