"""A stream into `format("txmq")` that dies at each of its steps: each micro-batch is sent once."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.jobs import exit_code_of
from tests.kit.reading import are_gap_free, log_rows, publish, topic_rows
from tests.process.producer.written_stream_process import TOPIC
from txmq.ground.fail_points import FailPoint
from txmq.store.store import Store
from txmq.verify import verify

MODULE = "tests.process.producer.written_stream_process"
LIMIT_S = 240
POINTS = (
    FailPoint.FILES_WRITTEN, FailPoint.FRAMES_WRITTEN, FailPoint.FRAMES_COMMITTED,
    FailPoint.END_READY, FailPoint.END_COMMITTED, FailPoint.END_CONFIRMED,
)  # fmt: skip
KILLS = int(os.environ.get("WRITTEN_STREAM_KILLS", "2"))
SEED = int(os.environ.get("WRITTEN_STREAM_SEED", "1"))
LONGEST_LIFE_S = 6.0
PAYMENTS_OF_A_FILE = 3
pytestmark = [
    pytest.mark.needs_spark,
    pytest.mark.timeout(LIMIT_S * (len(POINTS) + KILLS + 1)),
]


class Business:
    """Payments that come in, one file a micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, 0
        self.store = Store.create(folder / "store")
        (folder / "payments").mkdir()

    def receive(self) -> None:
        """Two files: the batch that dies, and one after it."""
        for _ in range(2):
            name = f"file-{self.files:03d}"
            lines = [
                json.dumps({"payment": f"{name}/{number}", "file": name})
                for number in range(PAYMENTS_OF_A_FILE)
            ]
            (self.folder / "payments" / f"{name}.json").write_text("\n".join(lines))
            self.files += 1

    def run(self, *arguments: str, faults: str = "") -> int:
        """A process with Java of its own; its exit code, when nothing of either is left."""
        places = self.store.location, str(self.folder)
        return exit_code_of(MODULE, *places, *arguments, limit_s=LIMIT_S, faults=faults)


def test_each_micro_batch_is_sent_once_wherever_its_job_dies(tmp_path: Path) -> None:
    business, drawn = Business(tmp_path), random.Random(SEED)
    for point in POINTS:
        business.receive()
        assert business.run(faults=f"{point}=kill") != 0
        publish(business.store)
    for _ in range(KILLS):
        business.receive()
        business.run(f"{drawn.uniform(0, LONGEST_LIFE_S):.3f}")
        publish(business.store)

    assert business.run() == 0

    publish(business.store)
    payments = Counter(row["keys"] for row in topic_rows(business.store, TOPIC))
    expected = [
        f"file-{file:03d}/{number}"
        for file in range(business.files)
        for number in range(PAYMENTS_OF_A_FILE)
    ]
    assert payments == Counter(expected)
    assert are_gap_free(topic_rows(business.store, TOPIC))
    heads = [row for row in log_rows(business.store, "half") if row["sequence"] == 0]
    assert {row["message_count"] for row in heads} == {PAYMENTS_OF_A_FILE}
    assert verify(business.store.location).is_clean
