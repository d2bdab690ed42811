"""The demo: a day at three airports, with crashes, and messages that tell the truth.

Dispatcher processes write departures into their own tables and send messages in transactions. A
seeded share of the transactions is cut by a kill, left by an exception, or answered UNKNOWN. The
broker, which settles all of them, is killed too. At the end the topics are compared with the
dispatchers' own tables.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from txmq.errors import TxmqError
from txmq.ops.demo.crew import Crew, harm_checkpoints
from txmq.ops.demo.folder import CONFIG, DemoFolder, DemoSettings
from txmq.ops.demo.plan import DEPARTED, PlannedTransaction, load_flights, make_plan
from txmq.ops.demo.reader import PlainReader, Truth
from txmq.ops.demo.screen import Demo, LiveView, Snapshot, tell
from txmq.store.store import Store

DEFAULT_FOLDER = "demo-store"
TICK_S = 0.1
LOOK_AT_LOGS_S = 1.0
BROKER_START_S = 180.0
SERVES_AT_LEAST_S = 5.0
DRAIN_S = 300.0
THREADS = 64
COULD_NOT_RUN = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The size of a demo."""

    flights: int
    seed: int
    dispatchers: int
    seconds: float
    kills: int
    broker_kills: int
    lose_checkpoints: bool


def main(  # noqa: PLR0913 - the options of a command
    location: str | None = None,
    *,
    flights: int = 6_000,
    seed: int = 13,
    dispatchers: int = 3,
    seconds: float = 60.0,
    kills: int = 12,
    broker_kills: int = 1,
    lose_checkpoints: bool = False,
) -> int:
    """Run the demo in a new folder; 0 if every promise was kept, 1 if not, 2 if it could not run.

    Args:
        location: the folder; a new one below ./demo-store if left out.
        flights: departures, at most 336,776.
        seed: the same seed gives the same plan.
        dispatchers: how many processes send.
        seconds: the time over which the departures are spread.
        kills: how many dispatchers get kill -9, half of them before their local transaction.
        broker_kills: how often the broker gets kill -9, Python and Java together.
        lose_checkpoints: while the broker is dead, delete all streaming checkpoints; every second
            time put an older copy in their place.
    """
    console = Console()
    options = Options(
        flights=flights,
        seed=seed,
        dispatchers=dispatchers,
        seconds=seconds,
        kills=kills,
        broker_kills=broker_kills,
        lose_checkpoints=lose_checkpoints,
    )
    folder = DemoFolder(Path(location) if location else _new_folder())
    try:
        return 0 if run(console, folder, options) else 1
    except KeyboardInterrupt:
        _tell_interrupted(console, folder)
        return INTERRUPTED
    except TxmqError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return COULD_NOT_RUN


def run(console: Console, folder: DemoFolder, options: Options) -> bool:
    """Run the demo; return true if every promise was kept."""
    plan = make_plan(load_flights(options.flights), seed=options.seed, kills=options.kills)
    folder.make()
    for number in range(options.dispatchers):
        folder.keep_plan(number, plan[number :: options.dispatchers])
    Store.create(folder.store, CONFIG)
    _tell_begin(console, folder, options, plan)
    demo = _Run(folder, options, plan)
    with demo.crew_that_stops(), LiveView(console) as view:
        demo.play(view)
    return tell(console, Demo(folder, plan, demo.reader.ledger, demo.crew.outages))


class _Run:
    """A running demo."""

    def __init__(
        self, folder: DemoFolder, options: Options, plan: Sequence[PlannedTransaction]
    ) -> None:
        self._folder, self._options, self._plan = folder, options, plan
        self._flights = sum(len(planned.flights) for planned in plan)
        self.crew = Crew(folder)
        self.reader = PlainReader(Store.open(folder.store))
        self._began_s = time.monotonic()
        self._logs_read_s = 0.0

    @contextmanager
    def crew_that_stops(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.crew.stop()

    def play(self, view: LiveView) -> None:
        """Run from the start of Spark until no transaction is open."""
        self.crew.start_broker()
        self._until(view, "starting Spark", self.crew.is_serving, BROKER_START_S)
        settings = DemoSettings(
            dispatchers=self._options.dispatchers,
            threads=THREADS,
            transactions=len(self._plan),
            seconds=self._options.seconds,
            started_s=time.time(),
        )
        self._folder.keep_settings(settings)
        for number in range(self._options.dispatchers):
            self.crew.start_dispatcher(number)
        self._until(view, "flights depart", self._all_departed, None)
        truth = Truth.read(self._folder, self._plan)
        self._until(view, "checks go on", lambda: self._is_drained(truth), DRAIN_S)

    def _until(
        self, view: LiveView, phase: str, done: Callable[[], bool], limit_s: float | None
    ) -> None:
        """Show progress until `done`, or until the limit has passed."""
        deadline_s = time.monotonic() + limit_s if limit_s else None
        while not done():
            if deadline_s is not None and time.monotonic() > deadline_s:
                return
            self._tick(view, phase)
            time.sleep(TICK_S)
        self._tick(view, phase)

    def _tick(self, view: LiveView, phase: str) -> None:
        self.reader.read_topics()
        now_s = time.monotonic()
        if now_s - self._logs_read_s >= LOOK_AT_LOGS_S:
            self._logs_read_s = now_s
            self.reader.read_logs()
            view.show(self._snapshot(phase))

    def _snapshot(self, phase: str) -> Snapshot:
        return Snapshot.of(
            self.reader.ledger,
            phase=self._phase(phase),
            elapsed_s=time.monotonic() - self._began_s,
            flights=self._flights,
            dispatcher_kills=self.crew.dispatcher_kills,
            broker_kills=self.crew.broker_kills,
            carriers=self._folder.carriers(),
        )

    def _phase(self, phase: str) -> str:
        if self.crew.broker_kills and not self._folder.ready_file.exists():
            return "no broker"
        return phase

    def _all_departed(self) -> bool:
        """Restart killed dispatchers, and kill the broker when it is time."""
        busy = self.crew.tend_dispatchers()
        self._kill_broker_in_time()
        return not busy

    def _kill_broker_in_time(self, *, has_all: bool = False) -> None:
        """Kill the broker at even shares of the flights, but never soon after its start.

        Once all flights have departed the share is not awaited: many may have been rolled back.
        """
        is_enough = self.crew.broker_kills >= self._options.broker_kills
        if is_enough or self.crew.served_s() < SERVES_AT_LEAST_S:
            return
        share = (self.crew.broker_kills + 1) / (self._options.broker_kills + 1)
        if has_all or len(self.reader.ledger.flights) >= share * self._flights:
            self.crew.kill_broker(harm_checkpoints if self._options.lose_checkpoints else None)

    def _is_drained(self, truth: Truth) -> bool:
        """Tell whether no transaction is open and both consumers have seen every message."""
        self._kill_broker_in_time(has_all=True)
        ledger = self.reader.ledger
        return (
            self.crew.is_serving()
            and self.crew.broker_kills >= self._options.broker_kills
            and ledger.open_transactions == 0
            and ledger.visible >= sum(truth.messages.values())
            and sum(self._folder.carriers().values()) >= ledger.messages[DEPARTED]
        )


def _new_folder() -> Path:
    parent = Path(DEFAULT_FOLDER)
    parent.mkdir(exist_ok=True)
    (parent / ".gitignore").write_text("*\n", encoding="utf-8")
    return parent / time.strftime("%Y%m%d-%H%M%S")


def _tell_begin(
    console: Console, folder: DemoFolder, options: Options, plan: Sequence[PlannedTransaction]
) -> None:
    console.print(
        f"{options.flights:,} departures from New York in {len(plan):,} transactions, sent by "
        f"{options.dispatchers} dispatchers in about {options.seconds:.0f} s. "
        f"{options.kills} times a dispatcher gets kill -9, "
        f"{options.broker_kills} times the broker.\n"
        f"Times are short here: the first check after {CONFIG.transaction_timeout_s:g} s, then "
        f"every {CONFIG.transaction_check_interval_s:g} s, and after "
        f"{CONFIG.transaction_check_max} checks without an answer a transaction is discarded.\n"
        f"All of it is in {folder.path}",
        highlight=False,
        soft_wrap=True,
    )


def _tell_interrupted(console: Console, folder: DemoFolder) -> None:
    console.print(
        f"Stopped; nothing runs any more. What was sent is in {folder.store}, and transactions "
        "that were open stay open until a broker asks for them.",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
