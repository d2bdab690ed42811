"""What Spark says when a stream over topics cannot go on, as errors of ours."""

from __future__ import annotations

import re

from txmq.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ReaderOvertakenError,
    TxmqError,
)

# Error conditions, and what older parts of Spark say without one.
_OVERTAKEN = (
    "DELTA_VERSION_NOT_FOUND", "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
    "DELTA_LOG_FILE_NOT_FOUND", "DELTA_FILE_NOT_FOUND_DETAILED", "FAILED_READ_FILE.FILE_NOT_EXIST",
    "Did not get the first delta file version", "Did not get the last delta file version",
    "FileNotFoundException",
)  # fmt: skip
_MISMATCH = ("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",)
_CORRUPT = (
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE", "MALFORMED_LOG_FILE", "Incomplete log file",
    "CANNOT_LOAD_STATE_STORE",
)  # fmt: skip
_VERSION = re.compile(r"version[s]?:? (\d+)", re.IGNORECASE)


def typed_stream_error(error: BaseException) -> TxmqError | None:
    """The error of ours that stands for a failure of a query; None for any other failure."""
    text = str(error)
    if any(condition in text for condition in _MISMATCH):
        return CheckpointMismatchError()
    if any(condition in text for condition in _CORRUPT):
        return CheckpointCorruptError("the checkpoint of a consumer", "cannot be read; restore it")
    if any(condition in text for condition in _OVERTAKEN):
        found = _VERSION.search(text)
        return ReaderOvertakenError(None if found is None else int(found[1]))
    return None
