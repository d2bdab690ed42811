"""Texts of delta-rs, pyarrow and the system: by their kind where it is known, else in words."""

from __future__ import annotations

import errno
import string

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import given
from hypothesis import strategies as some

from txmq.delta.failures import failed_read, failed_write, in_one_line
from txmq.errors import (
    AccessDeniedError,
    CommitRefusedError,
    ReadOnlyStoreError,
    StorageError,
    StorageUnavailableError,
    StoreFullError,
    UnsupportedPlaceError,
    UnsupportedTableError,
)

WORDS = some.text(string.ascii_letters + string.digits, min_size=12, max_size=40)
NAMES = ("StorageFull", "SlowDown", "AccessDenied", "NoSuchBucket", "conflict", "concurrent")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "x"), StoreFullError),
        (OSError(errno.EDQUOT, "x"), StoreFullError),
        (OSError("Generic LocalFileSystem error: No space left on device (os error 28)"),
         StoreFullError),
        (OSError(errno.EROFS, "x"), ReadOnlyStoreError),
        (OSError("Unable to open file: Permission denied (os error 13)"), ReadOnlyStoreError),
        (OSError(errno.ENOSYS, "Function not implemented"), UnsupportedPlaceError),
        (OSError("Unable to link file: Operation not supported (os error 95)"),
         UnsupportedPlaceError),
        (DeltaError("Client error with status 403 Forbidden: "), AccessDeniedError),
        (OSError("Generic MicrosoftAzure error: Account must be specified"), AccessDeniedError),
        (OSError("an error occurred while loading credentials: x"),
         AccessDeniedError),
        (DeltaError("error sending request for url (http://x/y)"), StorageUnavailableError),
        (CommitFailedError("This table has unsupported table features: [RowTracking]"),
         UnsupportedTableError),
        (CommitFailedError("Commit failed: a concurrent transaction failed"), CommitRefusedError),
        (DeltaError("Invalid table version: 7"), CommitRefusedError),
        (pa.ArrowInvalid("x"), StorageError),
    ],
)  # fmt: skip
def test_a_failed_write_is_told_by_its_kind(error: Exception, kind: type[StorageError]) -> None:
    assert type(failed_write("half", error)) is kind


def test_a_file_that_may_not_be_read_is_no_store_that_refuses_writes() -> None:
    error = failed_read("half", PermissionError(errno.EACCES, "Permission denied"))

    assert type(error) is AccessDeniedError


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["/lake/topics/{}/part-1", "s3://{}/half", "http://{}/x?a=b"])
def test_the_name_of_a_topic_or_a_bucket_decides_nothing(name: str, place: str) -> None:
    error = failed_write("topic", DeltaError(f"Odd thing at {place.format(name)}: strange"))

    assert type(error) is StorageError
    assert "strange" in str(error)


@given(some.text(max_size=300))
def test_a_text_that_nobody_listed_keeps_its_type_and_stays_one_line(text: str) -> None:
    told = in_one_line(DeltaError(text))

    assert told.startswith("DeltaError: ")
    assert "\n" not in told
    assert len(told) <= 412


def test_a_commit_that_was_refused_for_an_unknown_reason_is_not_told_as_a_race() -> None:
    error = failed_write("half", CommitFailedError("the moon is full\n  stack backtrace: 0"))

    assert type(error) is CommitRefusedError
    assert str(error) == "half: the commit was refused (CommitFailedError: the moon is full)"


PLACES = (
    "s3://user:{}@bucket/x",
    "https://account.blob/x?sv=1&sig={}",
    "secret_access_key={}",
    "aws_session_token: {}",
    "'AWS_SECRET_ACCESS_KEY': '{}'",
    "<AWSAccessKeyId>{}</AWSAccessKeyId>",
    "<StringToSign>AWS4 {}</StringToSign>",
    "password={};",
    "X-Amz-Security-Token={}",
    "Authorization: Bearer {}",
    "?X-Amz-Signature={}",
)


@given(WORDS, some.sampled_from(PLACES))
def test_no_secret_is_shown(secret: str, place: str) -> None:
    told = in_one_line(DeltaError(f"cannot do it: {place.format(secret)} (odd)"))

    assert secret not in told
    assert "cannot do it" in told


def test_a_chain_of_causes_is_one_line_without_colours() -> None:
    arrow = "\x1b[31m↳\x1b[0m"
    text = f"Generic S3 error\n   {arrow} Error performing GET\n    {arrow} 418 I'm a teapot\n"

    told = in_one_line(OSError(f"{text}\nstack backtrace:\n 0: main"))

    assert told == "OSError: Generic S3 error: Error performing GET: 418 I'm a teapot"
