"""A file of the op log that lost its content stops the publisher: nothing is skipped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.kit.reading import bodies
from tests.kit.sending import send_each
from txmq.delta.actions import path_of
from txmq.delta.replay import parsed_commit
from txmq.errors import StorageError
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

send = partial(send_each, topic="a")


def newest_commit(store: Store) -> Path:
    return max(Path(store.location, "op", "_delta_log").glob("*.json"))


DAMAGES = {
    "empty": b"",
    "a line": b"\n",
    "zeros": b"\x00" * 300,
    "torn": b'{"add":',
    "a list": b"[]",
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("is_running", [False, True])
def test_a_newest_commit_without_its_content_is_named_and_nothing_is_skipped(
    store: Store, content: bytes, *, is_running: bool
) -> None:
    running = Publisher(store)
    send(store, b"1")
    running.run_once()
    send(store, b"2")
    file = newest_commit(store)
    kept = file.read_bytes()
    file.write_bytes(content)
    publisher = running if is_running else Publisher(store)

    with pytest.raises(StorageError, match=file.name):
        publisher.run_once()
    file.write_bytes(kept)
    Publisher(store).run_once()

    assert bodies(store, "a") == [b"1", b"2"]


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_it_is_seen_too_where_it_was_settled_before(store: Store, content: bytes) -> None:
    send(store, b"1")
    Publisher(store).run_once()
    newest_commit(store).write_bytes(content)

    with pytest.raises(StorageError):
        Publisher(store).run_once()


# --- a file of claims ----------------------------------------------------------------------------

CLAIMS, DAMAGED = 40, 20
FILE_DAMAGES = {"empty": b"", "garbage": b"PAR1" * 20, "gone": None}


def damage(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.mark.parametrize("content", FILE_DAMAGES.values(), ids=FILE_DAMAGES)
def test_claims_before_a_file_of_claims_that_is_damaged_do_not_wait_for_its_repair(
    store: Store, content: bytes | None
) -> None:
    sent = [b"%02d" % number for number in range(CLAIMS)]
    send(store, *sent)
    op = store.tables.op_log().table
    (added,) = parsed_commit("op", DAMAGED, op.folder.commit_bytes(DAMAGED) or b"").added
    file = Path(op.location, path_of(added))
    kept = file.read_bytes()
    damage(file, content)

    publisher = Publisher(store)
    for _ in range(2):
        with pytest.raises(StorageError, match=file.name):
            publisher.run_once()
    assert bodies(store, "a") == sent[: DAMAGED - 1]
    file.write_bytes(kept)
    Publisher(store).run_once()

    assert bodies(store, "a") == sent
