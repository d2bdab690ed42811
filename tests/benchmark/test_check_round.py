"""A round of checks: three commits however many are asked, and seconds that do not explode."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.check_world import GROUP, CheckWorld
from txmq.check.recheck import RecheckJob

pytestmark = pytest.mark.benchmark

PER_COMMIT = 10_000
# Two cores take 2 s; a loop over rows in Python takes several times that.
MOST_S = 15.0


class OrderTable:
    """Answers all questions by one join with the orders that were made."""

    def __init__(self, ids: list[str]) -> None:
        states = pa.repeat(pa.scalar("COMMIT"), len(ids))
        self.orders = pa.table([pa.array(ids), states], ["transaction_id", "found"])

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        ids = heads.select(["transaction_id"])
        joined = ids.join(self.orders, "transaction_id", join_type="left outer")
        states = pc.coalesce(joined["found"], "ROLLBACK")
        return pa.table([joined["transaction_id"], states], ["transaction_id", "state"])


@pytest.mark.parametrize("count", [1, 100_000])
def test_a_round_is_one_commit_of_claims_and_two_of_the_lease(
    tmp_path: Path, count: int, record_property: pytest.RecordProperty
) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=10.0, check_lease_s=60.0)
    ids: list[str] = []
    while len(ids) < count:
        ids += world.prepare(min(PER_COMMIT, count - len(ids)))
    world.clock.advance(60)
    store = world.store
    tables = [
        store.tables.half_log().table,
        store.tables.op_log().table,
        store.tables.register("check_lease").table,
    ]
    before = [table.version for table in tables]
    listener = OrderTable(ids[::2])

    began_s = time.perf_counter()
    result = RecheckJob(store, listeners={GROUP: listener}, clock=world.clock).run_once()
    passed_s = time.perf_counter() - began_s

    after = [table.refresh().version for table in tables]
    record_property("round_s", round(passed_s, 2))
    print(f"{count:,} questions, found, asked and written in {passed_s:.2f} s")  # noqa: T201
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 2]
    assert (result.checks.committed, result.checks.asked) == ((count + 1) // 2, count)
    assert passed_s < MOST_S
