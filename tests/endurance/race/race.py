"""Local transactions against their checks, with kills on both sides, and who was right."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.endurance.race.actors import create, main
from tests.endurance.race.business import GROUP, business
from tests.kit import databases, s3
from tests.kit.forked import Forked
from tests.kit.reading import topic_rows
from txmq.check.open_transactions import open_transactions
from txmq.check.recheck import RecheckJob
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

PRODUCERS, CHECKERS = 2, 2
TIME_LIMIT_S = 1_200.0
SETTINGS = {
    # The check must race with a producer that lives, so none is renewed.
    "transaction_check_max": 1_000, "transaction_renewal_max_s": 0.0, "listener_timeout_s": 3.0,
    "check_lease_s": 4.0, "deadline_join": "always",
}  # fmt: skip
# A transaction that is on its way ends first.
END_LIMIT_S = 300
DRAIN_LIMIT_S = 120.0
PAUSE_S = 0.25


@dataclass(frozen=True)
class Race:
    """What is to be run; the same seed gives the same slowness and the same kills."""

    kind: str
    races: int
    seed: int
    fenced: bool = True
    kills: int = 0


@dataclass
class Outcome:
    """What it came to; both lists name transactions and must be empty."""

    race: Race
    prepared: int = 0
    messages_without_row: list[str] = field(default_factory=list)
    rows_without_message: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    ended_by: dict[str, int] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    verify_violations: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        wrong = (self.messages_without_row, self.rows_without_message, self.doubled)
        return not any(wrong) and self.verify_violations == 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_right": self.is_right}


def run(race: Race, folder: Path) -> Outcome:
    """Run it in `folder`, which must be empty."""
    began_s = time.monotonic()
    with place(race.kind, folder) as spec:
        made = Forked(create, spec, faults="", log=folder / "create.log")
        assert made.wait(END_LIMIT_S) == 0, made.complaint()
        store = Store.create(folder / "store", settings(business(spec).immunity_s))
        outcome = Outcome(race, kills=Field(race, store, spec, folder).play())
        drain(store, spec, fenced=race.fenced)
        judge(outcome, store, spec, folder)
    outcome.seconds = round(time.monotonic() - began_s, 1)
    return outcome


def settings(immunity_s: float) -> Config:
    """Those of a store whose checks come early."""
    times = {"transaction_timeout_s": immunity_s, "transaction_check_interval_s": immunity_s}
    return Config(**times, **SETTINGS)


@contextmanager
def place(kind: str, folder: Path) -> Iterator[str]:
    """Where the local transactions are."""
    if kind == "delta":
        yield f"delta:{folder}/orders"
        return
    if kind == "spark":
        with s3.moto(folder / "moto.log") as server:
            yield f"spark:{server.endpoint}"
        return
    with databases.running_postgres() as server:
        yield (
            f"postgresql:host={databases.HOST} port={server.port} user={server.user} "
            f"password='{databases.PASSWORD}' dbname=postgres"
        )


class Field:
    """The processes of a race, kept alive and killed."""

    def __init__(self, race: Race, store: Store, spec: str, folder: Path) -> None:
        self._race, self._store, self._spec, self._folder = race, store, spec, folder
        self._drawn = random.Random(race.seed)
        self._running: dict[str, Forked] = {}
        self._kills: Counter[str] = Counter()

    def play(self) -> dict[str, int]:
        """Until enough transactions were prepared; how many of each kind were killed."""
        names = [f"producer {n}" for n in range(PRODUCERS)]
        names += [f"checker {n}" for n in range(CHECKERS)]
        try:
            for name in names:
                self._start(name)
            self._until_enough(names)
            self._end("producer")
            self._end("checker")
        finally:
            for process in self._running.values():
                process.kill()
        return dict(self._kills)

    def _until_enough(self, names: list[str]) -> None:
        give_up_s = time.monotonic() + TIME_LIMIT_S
        while prepared(self._folder) < self._race.races or self._kills.total() < self._race.kills:
            assert time.monotonic() < give_up_s, "the race does not come to its end"
            time.sleep(self._drawn.uniform(0.2, 0.8))
            if self._kills.total() < self._race.kills:
                self._kill(self._drawn.choice(names))

    def _kill(self, name: str) -> None:
        self._running[name].kill()
        self._kills[name.split(maxsplit=1)[0]] += 1
        self._start(name)

    def _start(self, name: str) -> None:
        role = name.split(maxsplit=1)[0]
        fenced = "fenced" if self._race.fenced else "unfenced"
        last = str(self._drawn.getrandbits(32)) if role == "producer" else fenced
        arguments = role, self._store.location, self._spec, str(self._folder), last
        log = self._folder / f"{name}.log"
        self._running[name] = Forked(main, *arguments, faults="", log=log)

    def _end(self, role: str) -> None:
        self._folder.joinpath(f"stop {role}s").touch()
        for name, process in self._running.items():
            if name.startswith(role):
                assert process.wait(END_LIMIT_S) == 0, f"{name} failed: {process.complaint()}"


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "journal"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def prepared(folder: Path) -> int:
    return sum(line["what"] == "prepared" for line in lines(folder))


def drain(store: Store, spec: str, *, fenced: bool) -> None:
    """Ask until every transaction has an end, then publish."""
    recheck = RecheckJob(store, listeners={GROUP: business(spec).listener(fenced=fenced)})
    give_up_s = time.monotonic() + DRAIN_LIMIT_S
    while True:
        asked = recheck.run_once()
        published = Publisher(store).run_once()
        still_open = open_transactions(store)
        if not still_open.num_rows:
            return
        # What tells why: deadlines, checks, problems.
        why = f"{still_open.slice(0, 3).to_pylist()}; {asked}; {published}"
        assert time.monotonic() < give_up_s, f"transactions stay open: {why}"
        time.sleep(PAUSE_S)


def judge(outcome: Outcome, store: Store, spec: str, folder: Path) -> None:
    shown = Counter(bytes(row["body"]).decode() for row in topic_rows(store, "orders"))
    done = Counter(business(spec).rows())
    outcome.prepared = prepared(folder)
    outcome.messages_without_row = sorted(set(shown) - set(done))
    outcome.rows_without_message = sorted(set(done) - set(shown))
    outcome.doubled = sorted(key for key, count in (shown + done).items() if count > 2)
    heard = Counter(line["what"] for line in lines(folder) if line["what"] != "prepared")
    outcome.heard = dict(heard)
    settled = store.tables.settled_log(store.tables.op_log().table.log.table_id).table
    facts = settled.rows.read(settled.files.all(), ["state", "source"]).to_pylist()
    outcome.ended_by = dict(Counter(f"{row['state']} by {row['source']}" for row in facts))
    outcome.verify_violations = verify(store.location).violation_count
