"""Of many transactions the few are found that make the work fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from txmq.errors import StoreFullError
from txmq.publish.topic_writer import culprits

NAMES = [f"t{number}" for number in range(100)]


def failing(*bad: str) -> object:
    def work(names: Sequence[str]) -> None:
        if {*bad} & {*names}:
            raise OverflowError(bad[0])

    return work


@pytest.mark.parametrize("bad", [("t0",), ("t99",), ("t3", "t77")])
def test_all_of_them_are_named_and_nobody_else(bad: tuple[str, ...]) -> None:
    problems = culprits(NAMES, failing(*bad))  # type: ignore[arg-type]

    assert {*problems} == {*bad}
    assert {*problems.values()} == {"it cannot be processed (OverflowError)"}


def test_where_there_are_too_many_nobody_is_blamed() -> None:
    assert culprits(NAMES, failing(*NAMES)) == {}  # type: ignore[arg-type]


def test_a_full_disk_is_nobodys_fault() -> None:
    def work(names: Sequence[str]) -> None:
        raise StoreFullError("a", f"no space left for {len(names)}")

    with pytest.raises(StoreFullError):
        culprits(NAMES, work)
