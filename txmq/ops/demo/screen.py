"""What the demo shows: a live picture while it runs, and the report at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from txmq.message.lifecycle import TransactionState
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.demo.folder import DemoFolder
from txmq.ops.demo.plan import DEPARTED, TOPICS, Fate, PlannedTransaction
from txmq.ops.demo.reader import Exactness, Ledger, Outcome, Truth, outcomes, visible_messages
from txmq.store.store import Store
from txmq.verify import verify

LINE_INTERVAL_S = 5.0
BAR_WIDTH = 40
BAR = "█"
SHOWN_CARRIERS = 8
LATENCY_STEPS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of one picture."""

    phase: str
    elapsed_s: float
    flights: int
    flights_sent: int
    open_transactions: int
    committed: int
    rolled_back: int
    discarded: int
    messages: Mapping[str, int]
    dispatcher_kills: int
    broker_kills: int
    carriers: Mapping[str, int]

    @classmethod
    def of(cls, ledger: Ledger, **rest: object) -> Snapshot:
        """Make it of the reader's ledger; `rest` are the other fields."""
        return cls(
            flights_sent=len(ledger.flights),
            open_transactions=ledger.open_transactions,
            committed=ledger.in_state(TransactionState.COMMITTED),
            rolled_back=ledger.in_state(TransactionState.ROLLED_BACK),
            discarded=ledger.in_state(TransactionState.DISCARDED),
            messages=dict(ledger.messages),
            **rest,  # type: ignore[arg-type]
        )

    @property
    def visible(self) -> int:
        """Messages in the flights' topics."""
        return sum(self.messages.get(topic, 0) for topic in TOPICS)


class LiveView:
    """Shows snapshots until the block ends."""

    def __init__(self, console: Console) -> None:
        """Choose a picture that changes for a terminal, else a line every few seconds."""
        self._console = console
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
        self._next_line_s = 0.0
        self._phase = ""

    def show(self, snapshot: Snapshot) -> None:
        """Show a new snapshot."""
        if self._live is not None:
            self._live.update(picture(snapshot), refresh=True)
            return
        now_s = time.monotonic()
        if now_s >= self._next_line_s or snapshot.phase != self._phase:
            self._next_line_s = now_s + LINE_INTERVAL_S
            self._phase = snapshot.phase
            self._console.print(line(snapshot), soft_wrap=True, highlight=False)

    def __enter__(self) -> Self:
        """Start the live picture."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it, so that the terminal is free again."""
        if self._live is not None:
            self._live.stop()


def line(snapshot: Snapshot) -> str:
    """Write a snapshot in one line."""
    return (
        f"{snapshot.elapsed_s:5.0f} s  {snapshot.phase:<15} "
        f"flights {snapshot.flights_sent:,}/{snapshot.flights:,}  "
        f"open {snapshot.open_transactions:,}  committed {snapshot.committed:,}  "
        f"rolled back {snapshot.rolled_back:,}  discarded {snapshot.discarded:,}  "
        f"visible {snapshot.visible:,}  "
        f"killed: dispatchers {snapshot.dispatcher_kills}, broker {snapshot.broker_kills}"
    )


def picture(snapshot: Snapshot) -> RenderableType:
    """Draw a snapshot for a terminal."""
    body = Table.grid(padding=(0, 3))
    body.add_row(_counters(snapshot), _topics(snapshot), _carriers(snapshot.carriers))
    title = f"txmq demo, {snapshot.elapsed_s:.0f} s: {snapshot.phase}"
    return Panel(Group(_flights(snapshot), Text(), body), title=title, expand=False)


def bar(value: int, largest: int, width: int = BAR_WIDTH) -> str:
    """Draw a bar as long as its share of the largest; above 0 it has at least one block."""
    return BAR * max(int(value > 0), round(width * value / largest)) if largest else ""


def _flights(snapshot: Snapshot) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    progress = ProgressBar(total=snapshot.flights, completed=snapshot.flights_sent, width=50)
    row.add_row("flights", progress, f"{snapshot.flights_sent:,} of {snapshot.flights:,}")
    return row


def _numbers(title: str, rows: Mapping[str, int]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, number in rows.items():
        table.add_row(name, f"{number:,}")
    return table


def _counters(snapshot: Snapshot) -> RenderableType:
    rows = {
        "open": snapshot.open_transactions,
        "committed": snapshot.committed,
        "rolled back": snapshot.rolled_back,
        "discarded": snapshot.discarded,
        "killed": snapshot.dispatcher_kills + snapshot.broker_kills,
    }
    return _numbers("transactions", rows)


def _topics(snapshot: Snapshot) -> RenderableType:
    rows = {name.removeprefix("flight-"): snapshot.messages.get(name, 0) for name in TOPICS}
    rows["dead letters"] = snapshot.messages.get(TRANS_CHECK_MAX_TIME_TOPIC, 0)
    return _numbers("messages", rows)


def _carriers(carriers: Mapping[str, int]) -> RenderableType:
    table = Table(title="departures (streaming)", title_justify="left", box=None, show_header=False)
    largest = max(carriers.values(), default=0)
    for carrier, count in sorted(carriers.items(), key=lambda row: -row[1])[:SHOWN_CARRIERS]:
        table.add_row(carrier, f"{count:,}", bar(count, largest, 12))
    return table


# --- the report at the end ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that has run."""

    folder: DemoFolder
    plan: Sequence[PlannedTransaction]
    ledger: Ledger
    outages: Sequence[tuple[float, float]]


def tell(console: Console, demo: Demo) -> bool:
    """Print the whole report; return true if every promise was kept."""
    store = Store.open(demo.folder.store)
    truth = Truth.read(demo.folder, demo.plan)
    visible, carriers = visible_messages(store)
    results = outcomes(demo.plan, truth.fates, demo.ledger)
    _print_outcomes(console, results)
    _print_latency(console, demo, truth)
    verdicts = [
        _print_plan_kept(console, results),
        _print_carriers(console, demo.folder.carriers(), truth.carriers, +carriers),
        _print_exactness(console, Exactness.of(truth.messages, visible), truth),
        _print_verify(console, store.location),
    ]
    _print_next_steps(console, demo, truth)
    return all(verdicts)


def _print_outcomes(console: Console, results: Sequence[Outcome]) -> None:
    title = "What a dispatcher did, and what became of the transaction"
    console.print(title, style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("dispatcher", "planned", "became", "ended by"):
        table.add_column(name, justify="right" if name == "planned" else "left")
    for outcome in results:
        planned = "-" if outcome.planned is None else f"{outcome.planned:,}"
        table.add_row(outcome.name, planned, _listed(outcome.states), _listed(outcome.sources))
    console.print(table)


def _listed(counts: Mapping[TransactionState, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _print_latency(console: Console, demo: Demo, truth: Truth) -> None:
    served: list[float] = []
    waited: list[float] = []
    for transaction_id, returned_s in truth.commits.items():
        seen_s = demo.ledger.seen_s.get(transaction_id)
        if seen_s is None:
            continue
        # A message can be seen before the call that committed it has returned.
        latency_s = max(0.0, seen_s - returned_s)
        during = any(begin <= seen_s and returned_s <= end for begin, end in demo.outages)
        (waited if during else served).append(latency_s)
    _print_histogram(console, "commit() until seen", served)
    if waited:
        _print_histogram(console, "commit() until seen, around the broker's kill", waited)


def _print_histogram(console: Console, title: str, values: Sequence[float]) -> None:
    if not values:
        return
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    title = f"{title}: p50 {p50:.2f} s, p99 {p99:.2f} s"
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("up to", justify="right")
    table.add_column("transactions", justify="right")
    table.add_column("")
    rows = _histogram(values)
    largest = max(count for _, count in rows)
    for label, count in rows:
        table.add_row(label, f"{count:,}", bar(count, largest))
    console.print(table)


def _histogram(values: Sequence[float]) -> list[tuple[str, int]]:
    rows, lower = [], -1.0
    for upper in LATENCY_STEPS_S:
        rows.append((f"{upper:g} s", sum(lower < value <= upper for value in values)))
        lower = upper
    return [*rows, ("more", sum(value > lower for value in values))]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def _print_plan_kept(console: Console, results: Sequence[Outcome]) -> bool:
    wrong = [outcome.name for outcome in results if not outcome.is_as_planned]
    for name in wrong:
        console.print(f"not as planned: {name}", style="red")
    return not wrong


def _print_carriers(
    console: Console, streamed: Mapping[str, int], done: Mapping[str, int], read: Mapping[str, int]
) -> bool:
    console.print("Departures per carrier, by three ways of counting", style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("carrier")
    for name in ("done", "plain reader", "streaming"):
        table.add_column(name, justify="right")
    for carrier in sorted({*done, *read, *streamed}, key=lambda name: -done.get(name, 0)):
        counts = (count.get(carrier, 0) for count in (done, read, streamed))
        table.add_row(carrier, *(f"{count:,}" for count in counts))
    console.print(table)
    return dict(streamed) == dict(done) == dict(read)


def _print_exactness(console: Console, exactness: Exactness, truth: Truth) -> bool:
    for title, messages in (("missing", exactness.missing), ("too many", exactness.surplus)):
        for (topic, flight, transaction_id), count in messages.most_common(SHOWN_PROBLEMS):
            console.print(f"{title}: {topic} flight {flight} of {transaction_id} x {count}")
    flights = len({flight for _, flight, _ in truth.messages})
    done = len({transaction_id for _, _, transaction_id in truth.messages})
    console.print(
        f"The dispatchers' tables hold {flights:,} flights of {done:,} transactions, which have "
        f"{sum(truth.messages.values()):,} messages: {sum(exactness.missing.values()):,} missing, "
        f"{sum(exactness.surplus.values()):,} too many.",
        style="green" if exactness.is_clean else "red",
        soft_wrap=True,
    )
    return exactness.is_clean


def _print_verify(console: Console, location: str) -> bool:
    report = verify(location)
    for result in report.results:
        for violation in result.violations[:SHOWN_PROBLEMS]:
            console.print(f"{result.invariant} {violation.row_id}: {violation.detail}", style="red")
    console.print(
        f"verify: {report.violation_count:,} violations in "
        f"{report.counts['transactions']:,} transactions and "
        f"{report.counts['visible_messages']:,} visible messages ({report.duration_s:.1f} s)",
        style="bold green" if report.is_clean else "bold red",
        soft_wrap=True,
    )
    return report.is_clean


def _print_next_steps(console: Console, demo: Demo, truth: Truth) -> None:
    store = demo.folder.store
    console.print(f"\nLook into the store; all of the demo is in {demo.folder.path}")
    commands = [f"txmq status {store}", f"txmq verify {store}"]
    for fate in (Fate.KILLED_AFTER, Fate.NEVER_KNOWN):
        ids = [transaction_id for transaction_id, other in truth.fates.items() if other is fate]
        commands += [f"txmq show {store} {ids[0]}   # {fate}"] if ids else []
    for command in [*commands, _one_liner(store)]:
        console.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)


def _one_liner(store: Path) -> str:
    """Return a command that reads a topic without txmq."""
    topic = store / "topics" / DEPARTED
    return (
        # Not DeltaTable.to_pandas(): of deltalake 1.6.6 it may abort Python at its exit.
        'python -c "import pandas; from deltalake import DeltaTable; '
        f"print(pandas.read_parquet(DeltaTable('{topic}').file_uris(), "
        "columns=['queue_id', 'queue_offset', 'keys', 'tags', 'transaction_id']))\""
    )
