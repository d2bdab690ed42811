"""The log of a process: its level, and its form for people or for programs."""

from __future__ import annotations

import enum
import json
import logging
from datetime import UTC, datetime

from txmq.printable import PrintableFormatter

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LogFormat(enum.StrEnum):
    """`text` for people; `json` for programs, an object a line."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """From which level on records are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """As `logging` counts."""
        return logging.getLevelNamesMapping()[self.name]


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, and exception where there is one.

    Records of txmq have ids and never bodies; what a library writes is passed on as it is.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)


def log_to_stderr(level: int, form: LogFormat = LogFormat.TEXT) -> None:
    """Send the logs to standard error, with nothing in them that commands a terminal."""
    handler = logging.StreamHandler()
    is_text = form is LogFormat.TEXT
    handler.setFormatter(PrintableFormatter(TEXT_FORMAT) if is_text else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler])
