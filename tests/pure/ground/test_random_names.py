"""Names differ from those of every other process, also of a copy of this one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from txmq.ground import random_names
from txmq.ground.random_names import new_uuid, random_bits
from txmq.message.ids import new_transaction_id

if TYPE_CHECKING:
    import pytest


def test_names_are_uuids_of_version_4_and_differ() -> None:
    names = {new_uuid() for _ in range(10_000)}

    assert len(names) == 10_000
    assert {name.version for name in names} == {4}


def test_two_processes_of_one_image_choose_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    image, times = random_names._random.getstate(), iter([10**18, 10**18 + 1])
    monkeypatch.setattr("txmq.ground.random_names.time.time_ns", lambda: next(times))
    first = random_bits(74)
    random_names._random.setstate(image)

    assert random_bits(74) != first


def test_bits_are_no_more_than_asked_for() -> None:
    assert all(random_bits(74) < 1 << 74 for _ in range(1_000))


def test_forked_process_chooses_other_ids() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_transaction_id(0).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reader, 100).decode() != new_transaction_id(0)
