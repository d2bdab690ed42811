"""A backlog of transactions that were committed one by one: each half and each end is a file."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from bench import backlog
from bench.outcome import Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

PART = "one-row-commits"


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Messages a second beside the bare stream, and the processor time of a message."""
    sizes = replace(sizes, backlog_rows=sizes.one_row_commits, commit_rows=1)
    place = fresh_folder(folder, "full")
    samples, bare = backlog.samples_beside_bare(sizes, place)
    facts = {"samples": samples, "commits": sizes.one_row_commits}
    processor_ms = [_processor_ms(sizes, place) for _ in range(sizes.rounds)]
    return [
        Outcome(PART, "run_once()", "messages/s", samples[backlog.ONCE], bare, backlog.BAR, facts),
        Outcome(PART, "processor time of the publisher for a message", "ms", processor_ms),
    ]


def _processor_ms(sizes: Sizes, folder: Path) -> float:
    """Of this process alone: without the reader that looks whether all is visible."""
    publisher = Publisher(Store.open(backlog.copy_of_store(folder)))
    begun_s = time.process_time()
    publisher.run_once()
    return (time.process_time() - begun_s) * 1000 / sizes.backlog_rows
