"""Claims are appended once, whatever becomes of an append's answer and of the handle meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.builders import op_row, transaction_id
from tests.kit.commits import after_commit
from txmq.errors import StorageError, StoreFullError, UnknownCommitError
from txmq.store.claim_writer import ClaimWriter
from txmq.store.op import OpRow, op_table
from txmq.store.store import Store
from txmq.testing import failing_commits

QUEUES = 4


def new_writer(store: Store) -> ClaimWriter:
    return ClaimWriter(store.tables.op_log(), "test", QUEUES)


@pytest.fixture
def writer(store: Store) -> ClaimWriter:
    return new_writer(store)


def rows(*numbers: int) -> pa.Table:
    return op_table([op_row(number) for number in numbers], 0)


def written(store: Store) -> list[str]:
    """The transactions of all claims, in their order."""
    op = store.tables.op_log()
    found = op.between(0, op.table.version).sort_by(
        [("_commit_version", "ascending"), ("ordinal", "ascending")]
    )
    return [str(own_id) for own_id in found["transaction_id"].to_pylist()]


def ids(*numbers: int) -> list[str]:
    return [transaction_id(number) for number in numbers]


@contextmanager
def unreadable(writer: ClaimWriter) -> Iterator[None]:
    """Nothing can be read through the writer's table."""

    def fails() -> None:
        raise StorageError("op", "cannot be read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer.op.table.log, "_opened", fails)
        yield


# --- commits -----------------------------------------------------------------------------------


def test_each_append_is_one_commit_of_one_queue(store: Store, writer: ClaimWriter) -> None:
    for own in ([op_row(1), op_row(2)], [op_row(3)]):
        writer.append(own)

    table = store.tables.op_log().table
    assert (table.version, len(table.files.all())) == (2, 2)
    assert {file.partition["queue_id"] for file in table.files.all()} == {writer.queue_id}
    assert written(store) == ids(1, 2, 3)


def test_table_gets_queue_and_ordinals_of_the_commit(store: Store, writer: ClaimWriter) -> None:
    both = pa.concat_tables([op_table([op_row(1)], 3), op_table([op_row(2)], 1)])

    writer.append_table(both)

    found = store.tables.op_log().between(0, 1)
    assert found.select(["transaction_id", "ordinal"]).to_pylist() == [
        {"transaction_id": own_id, "ordinal": ordinal} for ordinal, own_id in enumerate(ids(1, 2))
    ]
    (file,) = store.tables.op_log().table.files.all()
    assert file.partition["queue_id"] == writer.queue_id


def test_its_handle_shows_what_it_appended(writer: ClaimWriter) -> None:
    writer.append([op_row(1)])

    assert writer.op.rows_about(pa.array(ids(1))).num_rows == 1


def test_two_writers_at_once_have_numbers_of_their_own(store: Store, writer: ClaimWriter) -> None:
    rival = new_writer(store)
    for number in range(1, 6):
        writer.append([op_row(number)])
        rival.append([op_row(10 + number)])

    assert sorted(written(store)) == ids(1, 2, 3, 4, 5, 11, 12, 13, 14, 15)


def test_last_version_is_the_commit_that_holds_the_claims(
    store: Store, writer: ClaimWriter
) -> None:
    rival = new_writer(store)

    with after_commit(lambda: [rival.append([op_row(number)]) for number in (7, 8)]):
        writer.append([op_row(1)])

    assert store.tables.op_log().table.version == 3
    assert writer.last_version() == 1
    assert rival.last_version() == 3


# --- answers that are lost ---------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, OSError("connection reset")], ids=repr)
def test_lost_answer_is_looked_up(
    store: Store, writer: ClaimWriter, error: Exception | None
) -> None:
    with failing_commits(1, error=error, after_commit=True):
        writer.append([op_row(1)])

    assert written(store) == ids(1)


def refreshed(writer: ClaimWriter) -> None:
    writer.op.table.refresh()


def reopened(writer: ClaimWriter) -> None:
    writer.op.table.reopen()


def left_alone(_: ClaimWriter) -> None:
    pass


@pytest.mark.parametrize("meanwhile", [refreshed, reopened, left_alone])
@pytest.mark.parametrize("has_landed", [True, False])
def test_same_claims_are_tried_again_and_written_once(
    store: Store,
    writer: ClaimWriter,
    meanwhile: Callable[[ClaimWriter], None],
    *,
    has_landed: bool,
) -> None:
    """Whatever broke off the first try, and also if its handle is moved on before the second."""
    own = rows(1, 2)
    interrupt: Any = KeyboardInterrupt()
    with (
        failing_commits(1, error=interrupt, after_commit=has_landed),
        pytest.raises(KeyboardInterrupt),
    ):
        writer.append_table(own)
    meanwhile(writer)

    writer.append_table(own)
    writer.append_table(rows(3))

    assert written(store) == ids(1, 2, 3)


def test_claims_that_could_neither_be_confirmed_nor_denied_are_found_later(
    store: Store, writer: ClaimWriter
) -> None:
    own = rows(1)
    writer.append_table(rows(9))
    with (
        unreadable(writer),
        failing_commits(1, error=OSError("connection reset"), after_commit=True),
        pytest.raises(UnknownCommitError),
    ):
        writer.append_table(own)
    with unreadable(writer), pytest.raises(StorageError):
        writer.append_table(own)

    writer.append_table(own)

    assert written(store) == ids(9, 1)


@pytest.mark.parametrize("has_landed", [True, False])
def test_other_claims_are_never_taken_for_those_that_failed(
    store: Store, writer: ClaimWriter, *, has_landed: bool
) -> None:
    interrupt: Any = KeyboardInterrupt()
    with (
        failing_commits(1, error=interrupt, after_commit=has_landed),
        pytest.raises(KeyboardInterrupt),
    ):
        writer.append_table(rows(1))

    writer.append_table(rows(2))

    assert written(store) == (ids(1, 2) if has_landed else ids(2))


def test_equal_claims_in_another_table_are_another_commit(
    store: Store, writer: ClaimWriter
) -> None:
    own: list[OpRow] = [op_row(1)]

    writer.append(own)
    writer.append(own)

    assert written(store) == ids(1, 1)


def test_full_disk_leaves_nothing_behind(store: Store, writer: ClaimWriter) -> None:
    full = OSError(28, "No space left on device")
    with failing_commits(1, error=full), pytest.raises(StoreFullError):
        writer.append([op_row(1)])

    writer.append([op_row(2)])

    assert written(store) == ids(2)
