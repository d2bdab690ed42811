"""What ails a store, as far as a quick look shows it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from txmq.admin.findings import Diagnosis, Finding, told
from txmq.admin.machine_findings import findings_of_probes, findings_of_programs
from txmq.admin.store_findings import (
    findings_of_brokers,
    findings_of_listeners,
    findings_of_order,
    findings_of_progress,
    findings_of_readers,
    findings_of_settings,
    findings_of_strange_paths,
)
from txmq.admin.table_findings import findings_of_table
from txmq.clock import Clock, SystemClock
from txmq.store.kept_settings import as_yaml
from txmq.store.register import Register
from txmq.store.store import Store, check_store
from txmq.store.tables import STATE


class Doctor:
    """Looks at a store, its brokers and readers, and this machine; `txmq verify` proves more.

    Args:
        store: the store to look at.
        clock: the clock of this machine.

    Example:
        >>> Doctor(store).examine().findings
        ()
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        check_store(store)
        self._store, self._clock = store, clock

    def examine(self, *, probes: bool = False) -> Diagnosis:
        """Look at everything once; nothing that the store names is loaded. Commits: 0.

        Reads: the log of each table, the registers, the offsets of topics with readers. A retry
        looks again.

        Args:
            probes: also write a small file in `clock/` and remove it, which shows what this process
                may do to the storage, whether writes are exclusive, and the store's time.

        Raises: StorageError if the folder of the store cannot be listed.
        """
        store = self._store
        clock = self._clock or SystemClock()
        now_ms = clock.now_ms()
        paths = store.tables.table_paths()
        findings = [
            *told("settings", partial(findings_of_settings, store)),
            *(finding for path in paths for finding in self._of_table(path)),
            *findings_of_strange_paths(store),
            *findings_of_order(store),
            *findings_of_progress(store, now_ms),
            *findings_of_listeners(store, clock),
            *told("state/brokers", partial(findings_of_brokers, store, now_ms)),
            *told("consumer groups", partial(findings_of_readers, store)),
            *findings_of_programs(store),
            *(findings_of_probes(store, self._clock) if probes else ()),
        ]
        text = as_yaml(store.ignored) if store.ignored else ""
        return Diagnosis(store.location, len(paths), tuple(dict.fromkeys(findings)), text)

    def _of_table(self, path: str) -> Iterator[Finding]:
        table = self._store.tables.table_at(path)
        yield from findings_of_table(path, table, self._store.config.checkpoint_interval)
        if path.startswith(STATE):
            yield from told(path, partial(_without_findings, Register(table)))


def _without_findings(register: Register) -> tuple[Finding, ...]:
    """Read its value, which fails where that is damaged."""
    if register.exists:
        register.read()
    return ()
