"""The public names of txmq with their signatures, as lines of text.

`python -m tests.kit.public_api > tests/pure/public_api.txt` accepts a change; say it in CHANGELOG.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import txmq
from txmq import errors


def lines() -> list[str]:
    """One line for each public name, method, property, field, enum member and error."""
    named = {name: getattr(txmq, name) for name in txmq.__all__}
    told = {name: value for name, value in vars(errors).items() if _is_error(value)}
    return [line for name, value in sorted({**named, **told}.items()) for line in _of(name, value)]


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _of(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield from _of_class(name, value)
    elif callable(value):
        yield f"{name}{inspect.signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _of_class(name: str, kind: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__)
    yield f"class {name}({bases})"
    if issubclass(kind, enum.Enum):
        yield from (f"{name}.{member.name} = {member.value!r}" for member in kind)
        return
    if dataclasses.is_dataclass(kind):
        yield from (f"{name}.{field.name}: {field.type}" for field in dataclasses.fields(kind))
    if "__init__" in vars(kind):
        yield f"{name}.__init__{inspect.signature(kind.__init__)}"
    yield from _members(name, kind)


def _members(name: str, kind: type) -> Iterator[str]:
    of_txmq = [base for base in kind.__mro__ if base.__module__.startswith("txmq")]
    for member in sorted({member for base in of_txmq for member in vars(base)}):
        if member.startswith("_"):
            continue
        value = inspect.getattr_static(kind, member)
        if isinstance(value, property):
            yield f"{name}.{member} -> {inspect.signature(value.fget).return_annotation}"
        elif callable(getattr(kind, member)):
            yield f"{name}.{member}{inspect.signature(getattr(kind, member))}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
