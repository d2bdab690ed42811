"""The log of a broker: its form for people or for programs, and a line of counts each minute."""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.ground.printable import PrintableFormatter
from txmq.ground.results import Plain, Sum

logger = logging.getLogger(__name__)
NOTHING = "nothing was to do"
INTERVAL_S = 60.0
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
        """The number of the level in `logging`."""
        return logging.getLevelNamesMapping()[self.name]


def log_to_stderr(level: int, form: LogFormat = LogFormat.TEXT) -> None:
    """Send the logs to standard error, with nothing in them that commands a terminal."""
    handler = logging.StreamHandler()
    is_text = form is LogFormat.TEXT
    handler.setFormatter(PrintableFormatter(TEXT_FORMAT) if is_text else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    if level == logging.INFO:
        # It says a line for each micro-batch.
        logging.getLogger("py4j").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object: time, level, logger, message, and exception if any.

    Records of txmq have ids and never bodies; what a library writes is passed on as it is.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)


@dataclass(frozen=True, slots=True)
class BrokerCounts(Plain, Sum):
    """The counts of all services; their names are the words of the log.

    Attributes:
        settled: claims that became facts.
        published: messages that became visible, scheduled or dead letters.
        delivered: delayed messages that came due.
        asked: questions to listeners.
        committed, rolled_back, unknown: what listeners answered.
        discarded: transactions that were asked too often.
        set_aside: transactions with messages that cannot be read.
        refused: commits that another broker was faster with.
        files_merged: small files that became large ones.
        commits_cleaned: old commits that left the logs.
        failures: tables and steps of maintenance that failed.
    """

    settled: int = 0
    published: int = 0
    delivered: int = 0
    asked: int = 0
    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    discarded: int = 0
    set_aside: int = 0
    refused: int = 0
    files_merged: int = 0
    commits_cleaned: int = 0
    failures: int = 0

    def since(self, before: BrokerCounts) -> BrokerCounts:
        """Return what was done after `before`."""
        names = [spec.name for spec in fields(self)]
        return BrokerCounts(**{name: getattr(self, name) - getattr(before, name) for name in names})

    def __str__(self) -> str:
        """Write out all that is not zero, such as `settled 3, published 5`."""
        counts = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        words = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count]
        return ", ".join(words) or NOTHING


class ReportHandle(ThreadHandle):
    """A thread that writes one line after each interval."""

    def __init__(self, counts: Callable[[], BrokerCounts], interval_s: float = INTERVAL_S) -> None:
        """Start the thread; `counts` gives the counts since the start of the services."""
        super().__init__("report", interval_s, first_s=interval_s)
        self._counts, self._before = counts, counts()
        self.begin()

    def tell(self) -> None:
        """Log what was done since the last line."""
        counts = self._counts()
        logger.info("in the last %.0f s: %s", self._interval_s, counts.since(self._before))
        self._before = counts

    def _turn(self) -> None:
        try:
            self.tell()
        except BaseException as error:
            if not is_survivable(error):
                raise
            logger.exception("the services could not be counted")
