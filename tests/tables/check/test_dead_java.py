"""A check service whose Java process has ended: it ends too, and what it knows is written."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.check_world import CheckWorld
from tests.kit.reading import wait_until
from txmq.check import service
from txmq.check.service import CheckService, LogTrigger
from txmq.errors import EnvironmentProblemError
from txmq.spark import join_trigger

if TYPE_CHECKING:
    import pytest


class DeadSession:
    """A session whose Java was killed: each call to it is a connection that is refused."""

    def newSession(self) -> Any:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    @property
    def streams(self) -> Any:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


class DyingQuery:
    """A query that runs, and whose Java is killed before it tells its progress."""

    isActive = True  # noqa: N815 - Spark's name

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def test_progress_that_java_does_not_tell_any_more_is_no_failure_of_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next look finds that the query has ended.
    monkeypatch.setattr(join_trigger, "start_check_stream", lambda *_, **__: DyingQuery())
    world = CheckWorld(tmp_path)
    session: Any = None

    running = join_trigger._Running(session, world.store, world.clock, lambda *_: None)

    assert not running.has_dropped_rows()


class StuckTrigger(LogTrigger):
    """A trigger that cannot be stopped."""

    def stop(self) -> None:
        message = "the query does not end"
        raise RuntimeError(message)


def test_late_answers_are_written_although_the_join_cannot_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    monkeypatch.setattr(service, "LogTrigger", StuckTrigger)
    handle = CheckService(CheckWorld(tmp_path).store).start()
    monkeypatch.setattr(handle._checks, "close", closed.set)

    handle.stop()

    assert closed.is_set()
    assert "does not end" in str(handle.exception)


def test_check_service_ends_when_no_join_can_start_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It must not pass for a fault of the storage, after which no recheck would come.
    monkeypatch.setattr(service, "LOOK_INTERVAL_S", 0.001)
    monkeypatch.setattr(join_trigger, "RESTART_PAUSE_S", 0.0)
    world = CheckWorld(tmp_path)
    session: Any = DeadSession()

    handle = CheckService(world.store, spark=session).start()
    try:
        wait_until(lambda: not handle.is_alive)
    finally:
        handle.stop()

    assert isinstance(handle.exception, EnvironmentProblemError)
    assert "Java" in str(handle.exception)
