"""Failures of Spark's streams: only what is known is told as an error of txmq."""

from __future__ import annotations

import pytest

from txmq.errors import CheckpointCorruptError, CheckpointMismatchError, ReaderOvertakenError
from txmq.spark.streams import typed_stream_error

LOST = "java.io.FileNotFoundException: File file:/lake/store/topics/order-paid/part-1.parquet"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"Job aborted. {LOST} does not exist", ReaderOvertakenError),
        ("[DELTA_VERSION_NOT_FOUND] Cannot time travel to version 3", ReaderOvertakenError),
        ("[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] x", CheckpointMismatchError),
        ("Incomplete log file", CheckpointCorruptError),
    ],
)
def test_known_failure_is_an_error_of_txmq(text: str, kind: type[Exception]) -> None:
    assert type(typed_stream_error(RuntimeError(text))) is kind


@pytest.mark.parametrize(
    "text",
    [
        "java.io.FileNotFoundException: /home/ann/prices.csv (No such file or directory)",
        "java.io.FileNotFoundException: File file:/lake/store/checkpoints/consumers/a/metadata",
        "FOREACH_BATCH_USER_FUNCTION_ERROR: ValueError: version 7 of the tariff is unknown",
        "",
    ],
)
def test_failure_that_nobody_listed_stays_what_it_is(text: str) -> None:
    assert typed_stream_error(RuntimeError(text)) is None
