"""A recheck in a process of its own: `python -m tests.scenario.check_process LOCATION JOURNAL`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.check_world import GROUP, UNKNOWN, JournalListener
from txmq.recheck import RecheckJob
from txmq.store import Store


def main(location: str, journal: str) -> None:
    listener = JournalListener(Path(journal), lambda _: UNKNOWN)
    RecheckJob(Store.open(location), listeners={GROUP: listener}).run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
