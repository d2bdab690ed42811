"""A delayed message that was set aside comes late to the schedule, and is delivered too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.delay_world import DelayWorld
from txmq.delta.file_rows import FileRows
from txmq.delta.files import DataFile
from txmq.store.set_aside import read_set_aside
from txmq.verify import verify

if TYPE_CHECKING:
    import pyarrow as pa

RETRY_S = 100.0


@pytest.fixture
def world(tmp_path: Path) -> DelayWorld:
    return DelayWorld(tmp_path)


def violations(world: DelayWorld) -> list[str]:
    return [one.invariant for one in verify(world.store.location).results if one.violation_count]


def send_while_half_cannot_be_read(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch, body: str, **delay: Any
) -> None:
    source = FileRows._source

    def broken(table: FileRows, file: DataFile, *rest: Any) -> pa.NativeFile:
        if table._folder.name == "half":
            raise OSError(5, "Input/output error")
        return source(table, file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(FileRows, "_source", broken)
        world.send(body, **delay)
    assert len(read_set_aside(world.store.tables).transactions) == 1


def publish_late(world: DelayWorld) -> None:
    world.clock.advance(RETRY_S)
    assert world.publisher.run_once().published == 1
    assert not read_set_aside(world.store.tables).transactions


@pytest.mark.parametrize("is_new_service", [False, True])
def test_delayed_message_that_was_set_aside_is_delivered(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch, *, is_new_service: bool
) -> None:
    world.send("first", delay_s=5)
    world.deliver()
    send_while_half_cannot_be_read(world, monkeypatch, "late", delay_s=1800)
    world.send("next", delay_s=10)
    assert world.after(10) == ["first", "next"]
    world.service._keep_progress()
    publish_late(world)
    if is_new_service:
        world.restart()

    assert world.after(1600) == ["first", "next"]
    assert world.after(100) == ["first", "next", "late"]
    assert violations(world) == []


@pytest.mark.parametrize("is_new_service", [False, True])
def test_message_that_was_due_while_it_was_set_aside_comes_at_once(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch, *, is_new_service: bool
) -> None:
    world.send("first", delay_s=5)
    world.deliver()
    send_while_half_cannot_be_read(world, monkeypatch, "late", delay_s=1)
    world.send("next", delay_s=10)
    assert world.after(10) == ["first", "next"]
    world.service._keep_progress()
    publish_late(world)
    assert violations(world) == []
    if is_new_service:
        world.restart()

    assert world.after(0) == ["first", "next", "late"]


def test_late_message_is_told_where_the_mark_moves_too(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other topics went on meanwhile, so the late message brings the schedule's mark with it."""
    world.send("first", delay_s=5)
    send_while_half_cannot_be_read(world, monkeypatch, "late", delay_s=1800)
    world.send("next", delay_s=10)
    world.deliver()
    world.send("now")
    publish_late(world)
    world.deliver()

    assert world.after(1800) == ["now", "first", "next", "late"]


def test_service_that_kept_its_progress_after_a_late_message_reads_nothing_again(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send("first", delay_s=5)
    send_while_half_cannot_be_read(world, monkeypatch, "late", delay_s=5)
    world.send("next", delay_s=5)
    publish_late(world)
    assert sorted(world.after(5)) == ["first", "late", "next"]
    world.service._keep_progress()
    world.restart()

    assert world.service.run_once().delivered == 0
    value = world.store.tables.register("delay").read().value
    assert value["late_writes"] == 1
