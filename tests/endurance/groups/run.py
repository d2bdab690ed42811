"""One run: send, torment the members meanwhile, wait until all is consumed, compare."""

from __future__ import annotations

import bisect
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.endurance.groups.compare import Comparison, notes_of, origins_of
from tests.endurance.groups.crew import Crew, Deed
from tests.endurance.groups.effects import create
from tests.endurance.groups.outcome import Faults, Outcome
from tests.endurance.groups.world import GROUPS, MAX_RECONSUME_TIMES, POISON, Group
from tests.endurance.harness import started, stop
from txmq.consumer.lag import lag_of_group
from txmq.message.names import SCHEDULE_TOPIC
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

POLL_S, START_WAIT_S, DRAIN_WAIT_S, QUIET_S = 0.02, 240.0, 240.0, 1.0
# What was never ended by its sender is rolled back in the end, and shown nowhere.
UNCHANGED_S = 20.0
LEASE_S, AGAIN_S = 3.0, 0.3


@dataclass(frozen=True)
class Plan:
    """How many messages are sent in how long, and how often members are killed meanwhile."""

    messages: int
    seconds: float
    kills: int
    seed: int = 1
    groups: int = len(GROUPS)
    with_spark: bool = True

    @property
    def deeds(self) -> list[Deed]:
        """Half as many stops as kills, and half as many joins and leaves."""
        half, few = (self.kills + 1) // 2, (self.kills + 3) // 4
        counts = {Deed.KILL: self.kills, Deed.STOP: half, Deed.JOIN: few, Deed.LEAVE: few}
        return [deed for deed, count in counts.items() for _ in range(count)]


def run(folder: Path, plan: Plan) -> Outcome:
    """All of it."""
    store, groups = made_store(folder), list(GROUPS.values())[: plan.groups]
    for group in groups:
        create(folder, group.name)
    draw = random.Random(plan.seed)
    crew = Crew(folder, store.location, groups, LEASE_S, draw)
    journal = folder / "sent.jsonl"
    with ExitStack() as stack:
        _broker(stack, folder, store)
        stack.callback(lambda: [own.process.kill() for own in crew.members])
        crew.begin(with_spark=plan.with_spark)
        _wait_until_ready(crew)
        begin_s = time.monotonic()
        sender = Sender(store, journal, plan)
        stack.callback(sender.process.kill)
        torment(crew, sender, plan)
        wait_until_consumed(crew, store)
        seconds = time.monotonic() - begin_s
        crew.stop()
    return outcome(store, folder, crew, seconds)


def made_store(folder: Path) -> Store:
    levels = " ".join(["1s"] * (MAX_RECONSUME_TIMES + 3))
    settings = {
        "message_delay_level": levels,
        "max_reconsume_times": MAX_RECONSUME_TIMES,
        "consumer_lease_s": LEASE_S,
        "default_topic_queue_nums": 6,
    }
    return Store.create(folder / "store", Config.from_dict(settings))


def _broker(stack: ExitStack, folder: Path, store: Store) -> None:
    ready = folder / "broker.ready"
    path = folder / "broker.log"
    with path.open("wb") as log:
        broker = started(["tests.endurance.mix.broker", store.location, str(ready), "without"], log)
    stack.callback(stop, broker, path)
    while not ready.exists():
        assert broker.poll() is None
        time.sleep(POLL_S)


class Sender:
    """The process that sends; its time counts from its first message."""

    def __init__(self, store: Store, journal: Path, plan: Plan) -> None:
        numbers = str(plan.seed), str(plan.messages), str(plan.seconds)
        self.process = started(
            ["tests.endurance.groups.sender", store.location, str(journal), *numbers], None
        )
        self._journal, self._begun_s = journal, 0.0

    def sends_for_s(self) -> float:
        if not self._begun_s and self._journal.exists() and self._journal.stat().st_size:
            self._begun_s = time.monotonic()
        return time.monotonic() - self._begun_s if self._begun_s else 0.0


def _wait_until_ready(crew: Crew) -> None:
    deadline_s = time.monotonic() + START_WAIT_S
    while not crew.is_ready():
        crew.keep()
        assert time.monotonic() < deadline_s, "members did not start"
        assert not crew.ended, crew.ended
        time.sleep(POLL_S)


def torment(crew: Crew, sender: Sender, plan: Plan) -> None:
    """One deed after the other, at random over the time in which is sent."""
    deeds = plan.deeds
    crew.draw.shuffle(deeds)
    moments_s = sorted(crew.draw.uniform(0, plan.seconds) for _ in deeds)
    due = list(zip(moments_s, deeds, strict=True))
    while sender.process.poll() is None or due:
        crew.keep()
        if due and sender.sends_for_s() > due[0][0]:
            moment_s, deed = due.pop(0)
            if not crew.do(deed):
                bisect.insort(due, (moment_s + AGAIN_S, deed))
        time.sleep(POLL_S)
    assert sender.process.returncode == 0


# --- waiting ------------------------------------------------------------------------------------


def wait_until_consumed(crew: Crew, store: Store) -> None:
    """Until each half is in a topic and each group has read all, for a moment.

    It gives up where nothing moves any more, so that a slow machine is no finding.
    """
    last, since_s = None, time.monotonic()
    while time.monotonic() - since_s < DRAIN_WAIT_S:
        crew.keep()
        waiting, lag = unpublished(store), sum(_lag(store, group) for group in crew.groups)
        now = waiting, lag
        if now != last:
            last, since_s = now, time.monotonic()
        quiet_s = time.monotonic() - since_s
        if crew.is_ready() and not lag and quiet_s > (UNCHANGED_S if waiting else QUIET_S):
            return
        time.sleep(POLL_S * 10)


def unpublished(store: Store) -> int:
    """Messages in the half log that are in no topic."""
    shown = [f"topics/{topic}" for topic in store.topics() if topic != SCHEDULE_TOPIC]
    return _rows(store, "half") - sum(_rows(store, path) for path in shown)


def _rows(store: Store, path: str) -> int:
    return sum(file.num_records for file in store.tables.table_at(path).refresh().files.all())


def _lag(store: Store, group: Group) -> int:
    return sum(one.lag for one in lag_of_group(store, group.name))


# --- comparing ----------------------------------------------------------------------------------


def outcome(store: Store, folder: Path, crew: Crew, seconds: float) -> Outcome:
    """The journals beside the tables."""
    notes, origins = notes_of(folder / "sent.jsonl"), origins_of(store)
    compared = [
        Comparison(store, folder, group, notes, origins, crew.events) for group in crew.groups
    ]
    figures = {one.group.name: one.figures() for one in compared}
    faults = sum((one.faults() for one in compared), Faults(ended=crew.ended))
    handled = sum(own.handled for own in figures.values())
    commits = sum(own.commits for own in figures.values())
    return Outcome(
        messages=len(notes),
        poisoned=sum(POISON in note for note in notes.values()),
        deeds=crew.counts(),
        groups=figures,
        seconds=round(seconds, 1),
        handled_per_s=round(handled / seconds, 1),
        commits_per_1000_messages=round(1000 * commits / max(handled, 1), 1),
        troubles=troubles(folder),
        faults=faults + Faults(unseen=sorted(notes.keys() ^ origins.keys())),
        verify_violations=verify(store.location).violation_count,
    )


def troubles(folder: Path) -> dict[str, int]:
    """What members went on after, by its kind."""
    lines = [
        line
        for path in folder.glob("*.log")
        for line in path.read_text("utf-8", errors="replace").splitlines()
        if "goes on after" in line or "could not be" in line
    ]
    return dict(Counter(line.partition(": ")[2][:60] for line in lines))
