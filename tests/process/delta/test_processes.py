"""Several processes on one table: what compare-and-swap is for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.kit.builders import messages
from txmq.delta.table import Table
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.schemas import HALF, REGISTER
from txmq.store.store import Store

ROOT = Path(__file__).parents[3]

COUNT_UP = """
import sys
from tests.kit.builders import halves
from txmq.errors import CommitRefusedError
from txmq.store.schemas import (HALF)
from txmq.delta.table import Table

location, last = sys.argv[1], int(sys.argv[2])
table = Table(location, HALF)
print("ready", flush=True)
while (at := table.reopen().log.mark("count") or 0) < last:
    try:
        table.writer.swap(halves(at + 1), {"count": at + 1})
    except CommitRefusedError:
        pass
"""

RAISE_EACH_OTHERS_COUNTER = """
import sys
from txmq.errors import CommitRefusedError
from txmq.store.schemas import (REGISTER)
from txmq.store.register import Register
from txmq.delta.table import Table

location, times = sys.argv[1], int(sys.argv[2])
register = Register(Table(location, REGISTER))
print("ready", flush=True)
done = 0
while done < times:
    seen = register.read()
    try:
        register.swap(seen, {"count": seen.value.get("count", 0) + 1}, now_ms=0)
        done += 1
    except CommitRefusedError:
        pass
"""

CREATE = """
import json, sys
from txmq.errors import StoreExistsError
from txmq.store.config import Config
from txmq.store.store import Store

print("ready", flush=True)
sys.stdin.readline()
answers = []
for number in range(int(sys.argv[2])):
    try:
        config = Config(check_threads=int(sys.argv[3]))
        Store.create(f"{sys.argv[1]}/store-{number}", config)
        answers.append("made")
    except StoreExistsError:
        answers.append("exists")
print(json.dumps(answers))
"""


def started(stack: ExitStack, program: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that has done its imports and says so."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = stack.enter_context(
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_three_processes_count_every_number_once_although_two_are_killed(tmp_path: Path) -> None:
    last = 60
    table = Table(str(tmp_path / "half"), HALF)
    table.writer.create(checkpoint_interval=10)

    with ExitStack() as stack:
        processes = [started(stack, COUNT_UP, table.location, last) for _ in range(3)]
        for process, reached in ((processes[0], 15), (processes[1], 30)):
            while (table.refresh().log.mark("count") or 0) < reached:
                assert process.poll() is None
            process.kill()
        code = processes[2].wait(timeout=120)

    table.reopen()
    found = table.rows.read(table.files.all(), ["transaction_id"])["transaction_id"].to_pylist()
    assert code == 0
    assert table.log.mark("count") == last
    assert set(Counter(found).values()) == {1}
    assert len(found) == last


def test_no_swap_of_a_register_is_lost_between_two_writers(tmp_path: Path) -> None:
    times = 25
    table = Table(str(tmp_path / "register"), REGISTER)
    table.writer.create(checkpoint_interval=10)

    with ExitStack() as stack:
        writers = [
            started(stack, RAISE_EACH_OTHERS_COUNTER, table.location, times) for _ in range(2)
        ]
        codes = [writer.wait(timeout=120) for writer in writers]

    rows = table.rows.read(table.files.all(), ["revision", "value"]).to_pylist()
    assert codes == [0, 0]
    assert [(row["revision"], json.loads(row["value"])) for row in rows] == [
        (2 * times, {"count": 2 * times})
    ]


def test_of_two_processes_that_create_a_store_at_once_exactly_one_did(tmp_path: Path) -> None:
    stores = 8

    with ExitStack() as stack:
        makers = [started(stack, CREATE, tmp_path, stores, threads) for threads in (11, 12)]
        for maker in makers:
            assert maker.stdin is not None
            maker.stdin.write("go\n")
            maker.stdin.flush()
        answers = [json.loads(maker.communicate(timeout=120)[0]) for maker in makers]

    for number, pair in enumerate(zip(*answers, strict=True)):
        winner = (11, 12)[pair.index("made")]
        assert sorted(pair) == ["exists", "made"]
        assert Store.open(tmp_path / f"store-{number}").config.check_threads == winner


COMMIT_IN_A_LOOP = """
import itertools, sys
from tests.kit.builders import halves
from txmq.store.schemas import (HALF)
from txmq.delta.table import Table

location, writer = sys.argv[1], int(sys.argv[2])
table = Table(location, HALF)
print("ready", flush=True)
for number in itertools.count(1):
    rows = halves(writer * 1_000_000 + number)
    table.writer.append(rows, app_id=f"writer-{writer}", number=number)
    print(number, flush=True)
"""


def test_what_was_acknowledged_before_a_kill_is_there_once(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "half"), HALF)
    table.writer.create(checkpoint_interval=10)
    acknowledged: dict[int, int] = {}

    with ExitStack() as stack:
        writers = [started(stack, COMMIT_IN_A_LOOP, table.location, number) for number in (1, 2)]
        for number, writer in enumerate(writers, 1):
            assert writer.stdout is not None
            for _ in range(12):
                acknowledged[number] = int(writer.stdout.readline())
        for number, writer in enumerate(writers, 1):
            writer.kill()
            assert writer.stdout is not None
            acknowledged[number] = max([acknowledged[number], *map(int, writer.stdout.readlines())])

    table.reopen()
    found = Counter(
        table.rows.read(table.files.all(), ["transaction_id"])["transaction_id"].to_pylist()
    )
    assert set(found.values()) == {1}
    for number, count in acknowledged.items():
        mark = table.log.mark(f"writer-{number}") or 0
        # One more commit than was heard of may have landed before the kill.
        assert count <= mark <= count + 1
    assert len(found) == sum(table.log.mark(f"writer-{number}") or 0 for number in acknowledged)


def test_store_of_another_process_holds_what_this_one_appended(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    origin = HalfOrigin("018f0000-0000-7000-8000-000000000001", "group", 0, 6.0, 0)
    store.tables.half_log().table.writer.append(
        half_table([HalfTransaction(origin, messages(2), [0, 0], 2)]), app_id="a", number=1
    )

    program = (
        "import sys; from txmq.store.store import Store; "
        "print(Store.open(sys.argv[1]).tables.half_log().halves(sys.argv[2]).found)"
    )
    command = [sys.executable, "-c", program, store.location, origin.transaction_id]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)

    assert answer.stdout == "2\n"
