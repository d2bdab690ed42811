"""What the demo shows while it runs: a live picture, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from txmq.demo.plan import TOPICS
from txmq.demo.reader import Ledger
from txmq.lifecycle import TransactionState
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC

LINE_INTERVAL_S = 5.0
BAR_WIDTH = 40
BAR = "█"
SHOWN_CARRIERS = 8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one picture shows."""

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
        """The picture of what the reader has seen; `rest` are the other fields."""
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
        """A terminal gets a picture that changes, anything else a line now and then."""
        self._console = console
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
        self._next_line_s = 0.0
        self._phase = ""

    def show(self, snapshot: Snapshot) -> None:
        """Bring what is on the screen up to date."""
        if self._live is not None:
            self._live.update(picture(snapshot), refresh=True)
            return
        now_s = time.monotonic()
        if now_s >= self._next_line_s or snapshot.phase != self._phase:
            self._next_line_s = now_s + LINE_INTERVAL_S
            self._phase = snapshot.phase
            self._console.print(line(snapshot), soft_wrap=True, highlight=False)

    def __enter__(self) -> Self:
        """Take the screen."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give it back."""
        if self._live is not None:
            self._live.stop()


def line(snapshot: Snapshot) -> str:
    """A snapshot in one line."""
    return (
        f"{snapshot.elapsed_s:5.0f} s  {snapshot.phase:<15} "
        f"flights {snapshot.flights_sent:,}/{snapshot.flights:,}  "
        f"open {snapshot.open_transactions:,}  committed {snapshot.committed:,}  "
        f"rolled back {snapshot.rolled_back:,}  discarded {snapshot.discarded:,}  "
        f"visible {snapshot.visible:,}  "
        f"killed: dispatchers {snapshot.dispatcher_kills}, broker {snapshot.broker_kills}"
    )


def picture(snapshot: Snapshot) -> RenderableType:
    """A snapshot for a terminal."""
    body = Table.grid(padding=(0, 3))
    body.add_row(_counters(snapshot), _topics(snapshot), _carriers(snapshot.carriers))
    title = f"txmq demo, {snapshot.elapsed_s:.0f} s: {snapshot.phase}"
    return Panel(Group(_flights(snapshot), Text(), body), title=title, expand=False)


def bar(value: int, largest: int, width: int = BAR_WIDTH) -> str:
    """A bar as long as its share of the largest; something is never nothing."""
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
