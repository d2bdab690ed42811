"""A writer's numbers belong to one process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from tests.kit.builders import halves
from txmq.delta import failures as forks
from txmq.store.claim_writer import NumberedCommits

if TYPE_CHECKING:
    import pytest

    from txmq.store.store import Store


def test_writer_that_was_forked_counts_under_a_name_of_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [store.tables.table_at("half") for _ in range(2)]
    parent = NumberedCommits(tables[0], "producer")
    child = copy.copy(parent)
    child._table = tables[1].refresh()
    for number, commits, table in zip((1, 2), (parent, child), tables, strict=True):
        rows = halves(number)
        commits.commit(
            rows,
            lambda app_id, count, rows=rows, table=table: table.writer.append(
                rows, app_id=app_id, number=count
            ),
        )
        monkeypatch.setattr(forks._Process, "id", -1)

    rows = tables[0].refresh().rows.read(tables[0].files.all(), ("transaction_id",))
    assert len(rows["transaction_id"].unique()) == 2
