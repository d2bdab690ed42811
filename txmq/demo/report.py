"""What the demo tells at its end: planned against seen, latency, and whether the truth was kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from txmq.demo.books import Books
from txmq.demo.folder import DemoFolder
from txmq.demo.plan import COURSES, DEPARTED, Fate, PlannedTransaction
from txmq.demo.reader import Ledger, Visible, one_liner, visible_messages
from txmq.demo.view import bar
from txmq.lifecycle import TransactionState
from txmq.store.store import Store
from txmq.verify import verify

if TYPE_CHECKING:
    from rich.console import Console

IN_FLIGHT = "in flight at a kill"
LATENCY_STEPS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Truth:
    """What the dispatchers' own tables say, all of them together."""

    fates: Mapping[str, Fate]
    messages: Visible
    carriers: Mapping[str, int]
    commits: Mapping[str, float]

    @classmethod
    def read(cls, folder: DemoFolder, plan: Sequence[PlannedTransaction]) -> Truth:
        """Read the tables of all dispatchers."""
        fates: dict[str, Fate] = {}
        commits: dict[str, float] = {}
        messages: Visible = Counter()
        carriers: Counter[str] = Counter()
        for number in range(folder.settings().dispatchers):
            books = Books(folder.books(number))
            fates |= {found: plan[place].fate for found, place in books.fates().items()}
            commits |= books.commits()
            for flight_id, transaction_id, carrier, topics in books.departures():
                messages.update((topic, flight_id, transaction_id) for topic in topics.split())
                carriers[carrier] += DEPARTED in topics.split()
            books.close()
        return cls(fates, messages, +carriers, commits)


@dataclass(frozen=True, slots=True)
class Exactness:
    """The difference between what was done and what is visible, both ways."""

    missing: Visible
    surplus: Visible

    @classmethod
    def of(cls, done: Visible, visible: Visible) -> Exactness:
        """Two anti-joins that count: a message that is visible twice is one too many."""
        return cls(done - visible, visible - done)

    @property
    def is_clean(self) -> bool:
        """Whether each message of what was done is visible once, and nothing else is."""
        return not self.missing and not self.surplus


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of transaction: how many were planned, and what became of them."""

    name: str
    planned: int | None
    wanted: TransactionState | None
    states: Mapping[TransactionState, int]
    sources: Mapping[str, int]

    @property
    def is_as_planned(self) -> bool:
        """Whether all of them came to the end that their fate demands."""
        if self.wanted is None:
            return True
        return dict(self.states) == ({self.wanted: self.planned} if self.planned else {})


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that has run."""

    folder: DemoFolder
    plan: Sequence[PlannedTransaction]
    ledger: Ledger
    outages: Sequence[tuple[float, float]]


def tell(console: Console, demo: Demo) -> bool:
    """Print the whole report; whether everything is as it must be."""
    store = Store.open(demo.folder.store)
    truth = Truth.read(demo.folder, demo.plan)
    visible, carriers = visible_messages(store)
    lines = outcome_lines(demo.plan, truth.fates, demo.ledger)
    _print_outcomes(console, lines)
    _print_latency(console, demo, truth)
    verdicts = [
        _print_plan_kept(console, lines),
        _print_carriers(console, demo.folder.carriers(), truth.carriers, +carriers),
        _print_exactness(console, Exactness.of(truth.messages, visible), truth),
        _print_verify(console, store.location),
    ]
    _print_next_steps(console, demo, truth)
    return all(verdicts)


def outcome_lines(
    plan: Sequence[PlannedTransaction], fates: Mapping[str, Fate], ledger: Ledger
) -> list[Line]:
    """Planned against seen, one line for each fate, and one for the victims of the kills."""
    planned = Counter(transaction.fate for transaction in plan)
    ends: dict[str, Counter[TransactionState]] = {}
    sources: dict[str, Counter[str]] = {}
    for transaction_id in ledger.heads:
        fate = fates.get(transaction_id, IN_FLIGHT)
        state, source = ledger.ends.get(transaction_id, (TransactionState.PENDING, "nobody"))
        ends.setdefault(fate, Counter())[state] += 1
        sources.setdefault(fate, Counter())[source] += 1
    rows: list[tuple[str, int | None, TransactionState | None]] = [
        (fate, planned[fate], COURSES[fate].state) for fate in Fate
    ]
    return [
        Line(name, count, wanted, ends.get(name, Counter()), sources.get(name, Counter()))
        for name, count, wanted in [*rows, (IN_FLIGHT, None, None)]
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def _print_outcomes(console: Console, lines: Sequence[Line]) -> None:
    title = "What a dispatcher did, and what became of the transaction"
    console.print(title, style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("dispatcher", "planned", "became", "ended by"):
        table.add_column(name, justify="right" if name == "planned" else "left")
    for line in lines:
        planned = "-" if line.planned is None else f"{line.planned:,}"
        table.add_row(line.name, planned, _listed(line.states), _listed(line.sources))
    console.print(table)


def _listed(counts: Mapping[TransactionState, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _print_plan_kept(console: Console, lines: Sequence[Line]) -> bool:
    wrong = [line.name for line in lines if not line.is_as_planned]
    for name in wrong:
        console.print(f"not as planned: {name}", style="red")
    return not wrong


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


def _print_carriers(
    console: Console, streamed: Mapping[str, int], done: Mapping[str, int], read: Mapping[str, int]
) -> bool:
    console.print("Departures per carrier, by three ways of counting", style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("carrier")
    for name in ("done", "plain reader", "streaming"):
        table.add_column(name, justify="right")
    for carrier in sorted({*done, *read, *streamed}, key=lambda name: -done.get(name, 0)):
        counts = (found.get(carrier, 0) for found in (done, read, streamed))
        table.add_row(carrier, *(f"{count:,}" for count in counts))
    console.print(table)
    return dict(streamed) == dict(done) == dict(read)


def _print_exactness(console: Console, exactness: Exactness, truth: Truth) -> bool:
    for title, found in (("missing", exactness.missing), ("too many", exactness.surplus)):
        for (topic, flight, transaction_id), count in found.most_common(SHOWN_PROBLEMS):
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
        found = [transaction_id for transaction_id, own in truth.fates.items() if own is fate]
        commands += [f"txmq show {store} {found[0]}   # {fate}"] if found else []
    for command in [*commands, one_liner(store)]:
        console.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)
