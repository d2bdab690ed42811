"""Bodies are read ahead in a thread that answers for its errors, and ends with its consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.kit.reading import wait_until
from txmq.publish.engines import READ_AHEAD_BATCHES, _read_ahead


def tables(count: int, error: type[BaseException] | None = None) -> Iterator[pa.Table]:
    for number in range(count):
        yield pa.table({"number": [number]})
    if error is not None:
        raise error


def numbers(read: Iterator[pa.Table]) -> list[int]:
    return [table["number"][0].as_py() for table in read]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_tables_come_in_their_order(count: int) -> None:
    assert numbers(_read_ahead(tables(count))) == list(range(count))


@pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_error_of_the_reader_is_raised_in_the_consumer(
    count: int, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        numbers(_read_ahead(tables(count, error)))


def test_reader_is_ahead_by_a_few_tables_only_and_ends_with_its_consumer() -> None:
    read: list[int] = []

    def noted() -> Iterator[pa.Table]:
        for number, table in enumerate(tables(1_000)):
            read.append(number)
            yield table

    consumer = _read_ahead(noted())
    for _ in range(3):
        next(consumer)
    # Three are consumed, some are in the queue, and one waits for room in it.
    wait_until(lambda: len(read) == 3 + READ_AHEAD_BATCHES + 1)
    consumer.close()  # type: ignore[attr-defined]

    wait_until(lambda: not any(t.name == "txmq-read-ahead" for t in threading.enumerate()))
    assert len(read) <= 3 + READ_AHEAD_BATCHES + 2
