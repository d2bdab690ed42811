"""Text of others on a terminal: keys, names and reasons may hold commands of a terminal."""

from __future__ import annotations

import logging
import unicodedata

# Control characters, those that turn the direction of text, halves of characters, line ends.
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Words of some languages, and many emoji, are joined by these.
_JOINERS = "\u200c\u200d"


def printable(text: str, kept: str = "") -> str:
    """Return the text, with an escape for each character that a terminal may obey.

    Args:
        text: of any origin.
        kept: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(_shown(character, kept) for character in text)


class PrintableFormatter(logging.Formatter):
    """Formats log records so that no text in them commands the terminal or adds a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a record, without its traceback."""
        # A line of the text cannot pass for a record: it is indented.
        record.message = printable(record.message, "\n").replace("\n", "\n    ")
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Return the traceback of a record, line by line."""
        return printable(super().formatException(ei), "\n")  # type: ignore[arg-type]


def _shown(character: str, kept: str) -> str:
    if character in kept or character in _JOINERS:
        return character
    if unicodedata.category(character) not in _ESCAPED:
        return character
    return character.encode("unicode_escape").decode("ascii")
