"""Says which messages cannot be erased yet: a publisher, a listener or a sender may need them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from txmq.backup.manifests import is_of_backup
from txmq.backup.place import STORE_FOLDER, Place
from txmq.errors import BackupError, ErasureRefusedError, StorageError
from txmq.lifecycle import FINAL_STATES
from txmq.maintenance.retention import published_up_to
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store

_FINAL = pa.array([state.value for state in FINAL_STATES])
_SHOWN = 5


def refuse_backup(store: Store) -> None:
    """Refuse a store that is the copy in a backup: a restore goes by its manifest; 0 commits.

    Raises: BackupError.
    """
    parent, _, name = store.location.rpartition("/")
    if name != STORE_FOLDER:
        return
    try:
        names = Place(parent or "/", store.storage_options).names()
    except StorageError:
        # Who may not list what lies beside a store may erase in it.
        return
    if any(map(is_of_backup, names)):
        problem = (
            "lies in a backup, and a restore would bring the messages back; nothing was erased"
        )
        step = "erase in the store, and once a look says that all is gone back it up again to"
        raise BackupError(store.location, f"{problem}: {step} {parent} (docs/erasure.md)")


def refuse_open(store: Store, transaction_ids: Collection[str]) -> None:
    """Refuse transactions that are open, or whose messages a publisher may be copying; 0 commits.

    Raises: ErasureRefusedError, StorageError.
    """
    logs = store.tables.logs()
    ids = pa.array(sorted(transaction_ids), pa.string())
    logs.refresh()
    facts = logs.settled.facts_of(ids)
    # Read after the facts: what is published now was settled before.
    version = published_up_to(store)
    final = facts.filter(pc.is_in(facts["state"], value_set=_FINAL))
    ended = set(final["transaction_id"].to_pylist())
    unpublished = set(
        final.filter(pc.greater(final["op_version"], version))["transaction_id"].to_pylist()
    )
    aside = set(read_set_aside(store.tables, logs.settled.set_aside_count).transactions)
    open_ids = [one for one in ids.to_pylist() if one not in ended]
    way_out = "end them (txmq show, txmq resolve) or let the publisher catch up, then try again"
    _refuse(open_ids, f"open, or their end is not settled: {way_out}")
    _refuse(sorted(unpublished), "not published yet: let the publisher catch up, then try again")
    way_out = "restore their file or give them up (txmq resolve --give-up), then try again"
    _refuse(sorted(aside & set(ids.to_pylist())), f"set aside: {way_out}")
    _refuse(on_their_way(store, transaction_ids, version), "being published: try again")


def on_their_way(store: Store, transaction_ids: Collection[str], after: int) -> tuple[str, ...]:
    """Those whose messages a publisher may hold in memory now, by claims beyond a version.

    Commits: 0. Raises: StorageError.
    """
    op = store.tables.op_log()
    through = op.refresh().table.version
    if after >= through or not transaction_ids:
        return ()
    claimed = pc.unique(op.between(after, through)["transaction_id"])
    ids = pa.array(sorted(transaction_ids), pa.string())
    return tuple(ids.filter(pc.is_in(ids, value_set=claimed)).to_pylist())


def _refuse(transaction_ids: Sequence[str], state: str) -> None:
    if not transaction_ids:
        return
    more = len(transaction_ids) - _SHOWN
    named = ", ".join(transaction_ids[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    count = f"{len(transaction_ids):,} transactions with these messages are {state}"
    raise ErasureRefusedError(transaction_ids, f"{count}; nothing was erased: {named}")
