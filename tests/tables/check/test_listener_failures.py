"""Why a listener failed is in the log of the process; the stored reason is short."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.check_world import GROUP, CheckWorld
from txmq.check.recheck import RecheckJob
from txmq.listeners.answering import without_bodies
from txmq.message.lifecycle import ClaimKind

if TYPE_CHECKING:
    import pyarrow as pa

LOG = "txmq.listeners.answering"


class PanicException(BaseException):
    """As pyo3 names what a panic of Rust becomes."""


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    made = CheckWorld(tmp_path)
    made.clock.advance(60)
    return made


def check(world: CheckWorld, listener: Any) -> None:
    RecheckJob(world.store, listeners={GROUP: listener}, clock=world.clock).run_once()


def raising(error: BaseException) -> Any:
    def answer(_: object) -> object:
        raise error

    return answer


@pytest.mark.parametrize(
    "error", [ValueError("no row 42"), SystemExit("no row 42"), PanicException("no row 42")]
)
def test_log_has_the_text_the_traceback_and_the_id(
    world: CheckWorld, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    (own_id,) = world.prepare(1)

    check(world, world.listener(raising(error)))

    (record,) = [one for one in caplog.records if one.name == LOG]
    text = record.getMessage()
    assert record.levelno == logging.ERROR
    for part in (own_id, GROUP, "no row 42", "in check_local_transaction", __file__):
        assert part in text
    (claim,) = world.claims(ClaimKind.UNKNOWN)
    assert claim["reason"] == f"the listener raised {type(error).__name__}"


def test_body_in_the_text_of_an_error_does_not_reach_the_log(
    world: CheckWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.prepare(1)
    caplog.set_level(logging.DEBUG)

    def answer(half: Any) -> object:
        raise ValueError(f"bad {half.body!r}, {half.body.decode()}") from KeyError(half.body)

    check(world, world.listener(answer))

    assert "<body>" in caplog.text
    assert "secret" not in caplog.text


def test_set_listener_that_fails_is_logged_with_its_first_ids(
    world: CheckWorld, caplog: pytest.LogCaptureFixture
) -> None:
    ids = world.prepare(7)

    class Sets:
        head_columns = ("transaction_id", "body")

        def check_local_transactions_arrow(self, heads: pa.Table) -> object:
            raise ConnectionError(f"database is away: {heads['body'][0].as_py()!r}")

    check(world, Sets())

    (record,) = [one for one in caplog.records if one.name == LOG]
    assert "7 transactions" in record.getMessage()
    assert any(own_id in record.getMessage() for own_id in ids)
    assert "database is away" in record.getMessage()
    assert "secret" not in caplog.text


def test_failure_of_one_kind_is_one_error_a_round_and_the_others_are_for_debug(
    world: CheckWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.prepare(20)
    caplog.set_level(logging.DEBUG, LOG)

    check(world, world.listener(raising(ConnectionError("away"))))

    levels = [one.levelno for one in caplog.records if one.name == LOG]
    assert sorted(levels) == [logging.DEBUG] * 19 + [logging.ERROR]


@pytest.mark.parametrize(
    ("text", "body", "shown"),
    [
        ("bad: {'a': 1}", b"{'a': 1}", "bad: <body>"),
        ("bad: begin of a long bo...", b"begin of a long body that is cut", "bad: <body>..."),
        ("a\\nb twice a\\nb", b"a\nb", "a\\nb twice a\\nb"),
        ("line\\nend", b"line\nend", "<body>"),
        (r"b'\xff\xfe\xfd\xfc'", b"\xff\xfe\xfd\xfc", "b'<body>'"),
        ("nothing of it", b"other body", "nothing of it"),
    ],
)
def test_body_is_found_in_each_form_and_by_its_begin(text: str, body: bytes, shown: str) -> None:
    assert without_bodies(text, [body]) == shown
