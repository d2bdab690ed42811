"""Values for tests, each with what a test does not care about filled in."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txmq.message.lifecycle import Claim, ClaimKind, ClaimSource, Halves
from txmq.message.message import Message
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.op import OpRow
from txmq.testing import START_MS

if TYPE_CHECKING:
    from pathlib import Path

    from txmq.store.store import Store

GROUP = "orders-service"
COMPLETE = Halves(GROUP, message_count=1, found=1)


def kind_of(value: object) -> str:
    """A test's name for an object, the same in every process."""
    return value.__name__ if isinstance(value, type) else type(value).__name__


def transaction_id(number: int, born_ms: int = START_MS) -> str:
    """A UUIDv7 that is the same in every run."""
    return str(uuid.UUID(int=born_ms << 80 | 0x7 << 76 | 0b10 << 62 | number))


def ids(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def claim(kind: ClaimKind, version: int = 0, ordinal: int = 0, **fields: Any) -> Claim:
    group = fields.pop("producer_group", GROUP)
    return Claim(
        fields.pop("transaction_id", transaction_id(1)), kind, group, version, ordinal, **fields
    )


def op_row(number: int, kind: ClaimKind = ClaimKind.COMMIT, **fields: Any) -> OpRow:
    given = {"source": ClaimSource.PRODUCER, "op_timestamp_ms": START_MS, **fields}
    return OpRow(transaction_id(number), kind, given.pop("producer_group", GROUP), **given)


def messages(count: int, topic: str = "order-paid") -> list[Message]:
    return [Message(topic, b"body-%d" % number) for number in range(count)]


def halves(  # noqa: PLR0913
    number: int,
    sent: Sequence[Message] | None = None,
    *,
    message_count: int | None = None,
    producer_group: str = GROUP,
    queue_id: int = 0,
    born_ms: int = START_MS,
) -> pa.Table:
    """The half rows of one transaction; `message_count` tells a lie where it is given."""
    sent = messages(1) if sent is None else sent
    origin = HalfOrigin(transaction_id(number), producer_group, queue_id, 6.0, born_ms)
    count = len(sent) if message_count is None else message_count
    return half_table([HalfTransaction(origin, sent, [0] * len(sent), count)])


def table_versions(store: Store) -> Mapping[str, int]:
    """The newest commit of every Delta table under a store; what a refused call must not change."""
    from pathlib import Path

    root = Path(store.location)
    return {
        str(log.parent.relative_to(root)): _newest_commit(log) for log in root.rglob("_delta_log")
    }


def _newest_commit(log: Path) -> int:
    return max(int(commit.stem) for commit in log.glob("*.json"))
