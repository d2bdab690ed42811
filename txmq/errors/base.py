"""The root of all errors, and how an error may show a value."""

from __future__ import annotations

from typing import ClassVar

SHOWN_CHARACTERS = 64


def shown(value: object) -> str:
    """A value as an error may show it: cut short, so that no body ever reaches a log."""
    # Cut first, for the value may be a body of any size.
    text = repr(value[:SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


class TxmqError(Exception):
    """Root of the tree; `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        """An error that leaves its process arrives with its fields."""
        return _error_again, (type(self), self.args, self.__dict__)


def _error_again(
    kind: type[TxmqError], arguments: tuple[object, ...], fields: dict[str, object]
) -> TxmqError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    return error
