"""The lines of a broker's log, and the forms of a log."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import fields
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from txmq.ops.broker_log import BrokerCounts, JsonFormatter, LogLevel, ReportHandle

if TYPE_CHECKING:
    import pytest

NAMES = [spec.name for spec in fields(BrokerCounts)]
COUNTS = st.builds(BrokerCounts, **{name: st.integers(0, 10**9) for name in NAMES})


@given(COUNTS, COUNTS)
def test_what_was_done_since_is_what_was_added(before: BrokerCounts, more: BrokerCounts) -> None:
    assert (before + more).since(before) == more


def test_text_names_what_is_not_zero() -> None:
    assert str(BrokerCounts(published=1200, rolled_back=1)) == "published 1,200, rolled back 1"
    assert str(BrokerCounts()) == "nothing was to do"


def test_report_tells_what_came_since_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    counts = BrokerCounts(published=3)
    report = ReportHandle(lambda: counts, interval_s=3600.0)
    try:
        with caplog.at_level(logging.INFO):
            counts = BrokerCounts(published=5, asked=1)
            report.tell()
            report.tell()
    finally:
        report.stop()

    first, second = caplog.messages
    assert first.endswith(": published 2, asked 1")
    assert second.endswith(": nothing was to do")


def test_counts_that_fail_end_no_service(caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def counts() -> BrokerCounts:
        if not caplog.handler.records and not failed.is_set():
            failed.set()
            return BrokerCounts()
        raise ZeroDivisionError

    report = ReportHandle(counts, interval_s=3600.0)
    report._turn()
    is_alive = report.is_alive
    report.stop()

    assert is_alive
    assert "could not be counted" in caplog.text


def test_json_has_one_object_a_line_and_the_traceback() -> None:
    formatter = JsonFormatter()
    logger = logging.getLogger("txmq.test")
    error = ZeroDivisionError()
    record = logger.makeRecord(
        "txmq.test", logging.ERROR, "f", 1, "topic %s\x1b[2J", ("a\nb",), (type(error), error, None)
    )

    line = formatter.format(record)

    assert "\n" not in line
    assert "\x1b" not in line
    values = json.loads(line)
    assert values["message"] == "topic a\nb\x1b[2J"
    assert values["level"] == "ERROR"
    assert values["logger"] == "txmq.test"
    assert "ZeroDivisionError" in values["exception"]
    assert values["time"].endswith("+00:00")


def test_levels_are_those_of_logging() -> None:
    assert [level.number for level in LogLevel] == [10, 20, 30, 40]
