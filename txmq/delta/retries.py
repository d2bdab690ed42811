"""Tries again what fast writers disturb."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from txmq.delta.failures import FINAL_READ_ERRORS, STORAGE_ERRORS, failed_read
from txmq.delta.forks import refuse_panic
from txmq.errors import StoreNotFoundError

READ_ATTEMPTS = 8
RETRY_PAUSE_S = 0.01
MISSING = "is not there; run txmq init for a new store, or restore it from a backup"
Result = TypeVar("Result")


def pause(attempt: int) -> None:
    """Wait before the next attempt; later attempts wait longer."""
    # Random pauses keep two losers from meeting again.
    time.sleep(RETRY_PAUSE_S * random.random() * min(2**attempt, 32))  # noqa: S311


def read_again(
    table: str, read: Callable[[], Result], missing: str = MISSING, path: str = ""
) -> Result:
    """Read, and try again where fast writers disturb the read.

    Raises: StorageError; it names the file of the table that is read, if one is.
    """
    for attempt in range(READ_ATTEMPTS):
        try:
            return read()
        except TableNotFoundError as error:
            raise StoreNotFoundError(table, missing) from error
        except (*STORAGE_ERRORS, pa.ArrowException) as error:
            cause, failure = error, failed_read(table, error, path)
            if isinstance(failure, FINAL_READ_ERRORS):
                break
            pause(attempt)
        except BaseException as error:
            refuse_panic(error)
            raise
    raise failure from cause
