"""A backlog of transactions that were committed one by one: each half and each end is a file."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench import backlog
from bench.bare import quiet_session
from bench.outcome import Bar, Outcome, alternate
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

BARE = (backlog.BARE_TRIGGER, backlog.BARE_AVAILABLE)
AT_LEAST_TIMES_THE_BARE_STREAM = 2.0
PART = "one-row-commits"


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Messages a second beside the bare stream, and the processor time of a message."""
    spark = quiet_session()
    sizes = replace(sizes, backlog_rows=sizes.one_row_commits, commit_rows=1)
    alternate(backlog.sides(spark, sizes.smaller(), fresh_folder(folder, "warm")), 1)
    place = fresh_folder(folder, "full")
    samples = alternate(backlog.sides(spark, sizes, place), sizes.rounds)
    bare = max((samples[name] for name in BARE), key=median)
    facts = {"samples": samples, "commits": sizes.one_row_commits}
    bar = Bar(AT_LEAST_TIMES_THE_BARE_STREAM, at_most=False)
    processor_ms = [_processor_ms(sizes, place) for _ in range(sizes.rounds)]
    return [
        Outcome(PART, "run_once()", "messages/s", samples[backlog.ONCE], bare, bar, facts),
        Outcome(PART, "processor time of the publisher for a message", "ms", processor_ms),
    ]


def _processor_ms(sizes: Sizes, folder: Path) -> float:
    """Of this process alone: without the reader that looks whether all is visible."""
    publisher = Publisher(Store.open(backlog.copy_of_store(folder)))
    begun_s = time.process_time()
    publisher.run_once()
    return (time.process_time() - begun_s) * 1000 / sizes.backlog_rows
