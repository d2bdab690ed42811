"""What listeners get is bounded in bytes, however many and however large the messages are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.check_world import COMMIT, GROUP, CheckWorld
from txmq.check.recheck import RecheckJob
from txmq.listeners import heads as heads_module
from txmq.listeners.heads import heads_of
from txmq.listeners.http import parts_of
from txmq.message.ids import new_transaction_id
from txmq.message.message import Message
from txmq.store.half import HalfOrigin, HalfTransaction, half_table

KIB = 1024
BODY_BYTES = 64 * KIB
COUNT = 40


class World(CheckWorld):
    """Transactions with large bodies."""

    def prepare_large(self, count: int, *, files: int = 1) -> list[str]:
        ids = [new_transaction_id(1_700_000_000_000 + number) for number in range(count)]
        for number in range(files):
            made = [self._half_of(own_id) for own_id in ids[number::files]]
            self._half.table.writer.append(
                half_table(made), app_id=self._app_id, number=next(self._numbers)
            )
        return ids

    def _half_of(self, own_id: str) -> HalfTransaction:
        message = Message("paid", own_id.encode() + bytes(BODY_BYTES))
        return HalfTransaction(HalfOrigin(own_id, GROUP, 0, 6.0, 1), [message], [0], 1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def questions(ids: list[str]) -> pa.Table:
    return pa.table({"transaction_id": ids, "check_times": pa.array([0] * len(ids), pa.int32())})


@pytest.mark.parametrize("files", [1, 5, COUNT])
def test_heads_of_a_round_fit_into_its_bytes_and_the_most_urgent_come_first(
    world: World, files: int
) -> None:
    ids = world.prepare_large(COUNT, files=files)

    heads = heads_of(world.store.tables.half_log(), questions(ids[::-1]), max_bytes=10 * BODY_BYTES)

    got = heads.rows["transaction_id"].to_pylist()
    assert 1 < len(got) <= 10
    assert got == ids[::-1][: len(got)]
    assert heads.left.to_pylist() == ids[::-1][len(got) :]
    assert heads.rows.nbytes < 12 * BODY_BYTES


def test_one_head_is_read_however_large_it_is(world: World) -> None:
    ids = world.prepare_large(3)

    heads = heads_of(world.store.tables.half_log(), questions(ids), max_bytes=1)

    assert heads.rows["transaction_id"].to_pylist() == ids[:1]


def test_bodies_count_only_where_they_are_read(world: World) -> None:
    ids = world.prepare_large(COUNT)

    narrow = heads_of(
        world.store.tables.half_log(), questions(ids), ("transaction_id", "keys"), BODY_BYTES
    )

    assert narrow.rows["transaction_id"].to_pylist() == ids


def test_all_are_asked_in_rounds_and_none_waits_for_a_pause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        heads_module.heads_of, "__defaults__", (heads_module.HEAD_COLUMNS, 7 * BODY_BYTES)
    )
    ids = world.prepare_large(COUNT)
    world.clock.advance(60)
    listener = world.listener(COMMIT)

    result = RecheckJob(world.store, listeners={GROUP: listener}, clock=world.clock).run_once()

    assert result.checks.committed == COUNT
    assert sorted(listener.asked()) == sorted(ids)
    assert {row["kind"] for row in world.claims()} == {"COMMIT"}


def test_posts_are_bounded_in_rows_and_in_bytes() -> None:
    bodies = [bytes(100)] * 5 + [bytes(5_000)] + [bytes(100)] * 5
    heads = pa.table({"number": list(range(11)), "body": bodies})

    parts = list(parts_of(heads, 4, 1_000))

    assert pa.concat_tables(parts)["number"].to_pylist() == list(range(11))
    assert all(part.num_rows <= 4 for part in parts)
    assert all(part.nbytes <= 1_000 or part.num_rows == 1 for part in parts)
