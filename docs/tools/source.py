"""Signatures and docstrings as they are written in the source."""

import ast
import inspect
import textwrap
from itertools import pairwise
from types import ModuleType
from typing import Any


def code(text: str) -> str:
    """Return a block of Python."""
    return f"```python\n{text}\n```"


def text_of(documented: object) -> str:
    """Return a docstring as the page shows it."""
    return inspect.getdoc(documented) or ""


def facts(cls: type | ModuleType) -> dict[str, str]:
    """Return the docstrings of attributes: the strings below them in the source."""
    return {
        _target(one): " ".join(text.value.value.split())
        for one, text in pairwise(_body(cls))
        if _target(one) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def annotations(cls: type) -> dict[str, str]:
    """Return the annotations of public attributes as they are written, such as `Tensors`."""
    return {
        one.target.id: ast.unparse(one.annotation)
        for one in _body(cls)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if not one.target.id.startswith(("_", "model_"))
    }


def assigned(module: ModuleType, name: str) -> str:
    """Return the line of a module that defines a type, such as `Shares = dict[...]`."""
    [line] = [one for one in _body(module) if _target(one) == name]
    text = ast.get_source_segment(inspect.getsource(module), line)
    assert text is not None
    return text


def methods(cls: type) -> list[tuple[str, Any, bool]]:
    """List the public methods and properties of a class: name, function, whether a property."""
    found = []
    for name, member in vars(cls).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        function = getattr(function, "func", function)  # of a cached property
        own = inspect.isfunction(function) and function.__qualname__ == f"{cls.__name__}.{name}"
        if own and not name.startswith(("_", "model_")):
            found.append((name, function, function is not member and not _is_bound(member)))
    return found


def signature(name: str, function: Any) -> str:  # noqa: ANN401 - any function
    """Return a signature with annotations as they are written, such as `Tensors`."""
    source = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(source, ast.FunctionDef)
    written = {own.arg: own.annotation for own in [*source.args.args, *source.args.kwonlyargs]}
    written |= {own.arg: own.annotation for own in (source.args.vararg, source.args.kwarg) if own}
    exact = inspect.signature(function)
    parameters = [
        one.replace(annotation=_written(written[one.name])) for one in exact.parameters.values()
    ]
    exact = exact.replace(parameters=parameters, return_annotation=_written(source.returns))
    return f"def {name}{exact}"


def names_in(annotation: str) -> set[str]:
    """Return the names in an annotation, without those of modules in front of them."""
    nodes = list(ast.walk(ast.parse(annotation, mode="eval")))
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {
        node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in inner
    }


def _is_bound(member: object) -> bool:
    return isinstance(member, classmethod | staticmethod)


def _body(cls: type | ModuleType) -> list[ast.stmt]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    if isinstance(cls, ModuleType):
        return tree.body
    [source] = tree.body
    assert isinstance(source, ast.ClassDef)
    return source.body


def _target(statement: ast.stmt) -> str:
    """Return the name that a statement defines, or nothing."""
    if isinstance(statement, ast.AnnAssign):
        target = statement.target
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        return ""
    return target.id if isinstance(target, ast.Name) else ""


class _Words(str):
    """A text whose repr has no quotes."""

    def __repr__(self) -> str:
        return str(self)


def _written(annotation: ast.expr | None) -> object:
    """Return an annotation as it is written; one in quotes loses them."""
    if annotation is None:
        return inspect.Signature.empty
    quoted = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
    return _Words(annotation.value if quoted else ast.unparse(annotation))
