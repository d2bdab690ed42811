"""A recheck, for a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.kit.check_world import GROUP, UNKNOWN, JournalListener
from txmq.check.recheck import RecheckJob
from txmq.store.store import Store


def main(location: str, journal: str) -> None:
    listener = JournalListener(Path(journal), lambda _: UNKNOWN)
    RecheckJob(Store.open(location), listeners={GROUP: listener}).run_once()
