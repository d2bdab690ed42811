"""A round of checks makes three commits and calls no rule once a row, however many are asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.kit.check_world import GROUP, CheckWorld
from txmq.check import claims, standing
from txmq.check.recheck import RecheckJob

PER_COMMIT = 10_000
# One question and a hundred thousand take as many calls of each rule.
RULE_CALLS_MAX = 20


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


@pytest.fixture
def rule_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each rule of a round was called."""
    calls: Counter[str] = Counter()
    for module, name in ((claims, "decide"), (standing, "fold")):
        monkeypatch.setattr(module, name, _counted(getattr(module, name), name, calls))
    return calls


def _counted(rule: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return rule(*arguments, **named)

    return call


@pytest.mark.parametrize("count", [1, 100_000])
def test_a_round_is_one_commit_of_claims_and_two_of_the_lease(
    tmp_path: Path, count: int, rule_calls: Counter[str]
) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=600.0, check_lease_s=3_600.0)
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

    result = RecheckJob(store, listeners={GROUP: listener}, clock=world.clock).run_once()

    after = [table.refresh().version for table in tables]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 2]
    assert (result.checks.committed, result.checks.asked) == ((count + 1) // 2, count)
    assert rule_calls["decide"] >= 1
    assert max(rule_calls.values()) <= RULE_CALLS_MAX
