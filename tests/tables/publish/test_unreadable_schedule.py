"""One file of the schedule that cannot be read holds up its own delayed messages, and no others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.delay_world import DelayWorld
from txmq.message.names import SCHEDULE_TOPIC

RETRY_S = 30.0
DAMAGES = ("emptied", "garbage", "gone")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DelayWorld]:
    made = DelayWorld(tmp_path, park_retry_interval_s=RETRY_S)
    yield made
    made.producer.close()


def scheduled_file(world: DelayWorld, body: str, delay_s: float) -> Path:
    """A delayed message in a file of its own."""
    schedule = Path(world.store.location, "topics", SCHEDULE_TOPIC)
    before = set(schedule.rglob("*.parquet"))
    world.send(body, delay_s=delay_s)
    (file,) = {path for path in schedule.rglob("*.parquet") if "_delta_log" not in path.parts} - (
        before
    )
    return file


def damage(file: Path, how: str) -> bytes:
    content = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "emptied" else b"x" * len(content))
    return content


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("is_known", [False, True])
def test_all_others_are_delivered_and_its_own_once_it_is_back(
    world: DelayWorld, how: str, *, is_known: bool
) -> None:
    if is_known:
        world.send("first", delay_s=1)
        world.deliver()
    file = scheduled_file(world, "held up", 60)
    content = damage(file, how)
    world.send("other", delay_s=60)
    world.clock.advance(100)

    result = world.deliver()

    assert result.unreadable_files == 1
    assert "other" in world.visible()
    assert "held up" not in world.visible()
    file.write_bytes(content)
    assert sorted(world.after(2 * RETRY_S)[-2:]) == ["held up", "other"]
    assert world.deliver().unreadable_files == 0


def test_progress_does_not_pass_it_so_a_new_start_finds_it(world: DelayWorld) -> None:
    file = scheduled_file(world, "held up", 60)
    content = damage(file, "emptied")
    world.send("other", delay_s=60)
    world.clock.advance(100)
    world.deliver()
    world.service._keep_progress()
    file.write_bytes(content)

    world.restart()
    world.deliver()

    assert sorted(world.visible()) == ["held up", "other"]


def test_file_is_told_once_for_as_long_as_it_cannot_be_read(
    world: DelayWorld, caplog: pytest.LogCaptureFixture
) -> None:
    file = scheduled_file(world, "held up", 60)
    damage(file, "emptied")

    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            world.clock.advance(40 * RETRY_S)
            world.deliver()

    told = [one for one in caplog.messages if "the schedule has a file" in one]
    assert len(told) == 1
    assert file.name in told[0]


def test_file_that_moved_meanwhile_is_not_unreadable(world: DelayWorld) -> None:
    world.send("1", delay_s=60)
    world.send("2", delay_s=60)
    world.deliver()
    schedule = world.store.tables.schedule_log().refresh()
    files = schedule.table.files.all()
    rival = world.store.tables.schedule_log().refresh().table
    rival.writer.remove([rival.files.all()[0]])
    Path(rival.location, files[0].path).unlink(missing_ok=True)

    day = files[0].partition["due_date"]
    rows, unreadable = schedule.readable(day, -1, ("transaction_id",))

    assert unreadable == ()
    assert rows.num_rows == 1
