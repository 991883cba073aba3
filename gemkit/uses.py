"""Where a network uses its weights: in the modules that own them, or behind their backs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle


def around(
    owners: Mapping[nn.Module, Sequence[str]],
    before: Callable[[Sequence[str]], None],
    after: Callable[[Sequence[str]], None],
) -> list[RemovableHandle]:
    """Have something called before and after every module that has weights of these names."""
    handles = []
    for owner, names in owners.items():
        handles += [
            owner.register_forward_pre_hook(_calling(before, names), prepend=True),
            owner.register_forward_hook(_calling(after, names), always_call=True),
        ]
    return handles


def _calling(what: Callable[[Sequence[str]], None], names: Sequence[str]) -> Callable[..., None]:
    return lambda *_: what(names)


class Uses(TorchFunctionMode):
    """Notes which weights something is computed with outside of the modules that own them."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.open: Counter[str] = Counter()
        self.elsewhere: set[str] = set()

    def owned_in(self, model: nn.Module) -> dict[nn.Module, list[str]]:
        """Return the modules to which the weights belong."""
        owned = {
            module: [
                self.names[id(own)] for own in module._parameters.values() if id(own) in self.names
            ]
            for module in model.modules()
        }
        return {module: names for module, names in owned.items() if names}

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if any(isinstance(one, Tensor) for one in tree_leaves(result)):  # not just a shape
            given = (self.names.get(id(one)) for one in tree_leaves((args, kwargs)))
            self.elsewhere.update(name for name in given if name and not self.open[name])
        return result
