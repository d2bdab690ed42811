"""The rounds of a torture, its end, and what it came to."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.endurance.torture.actors import operate
from tests.endurance.torture.ledger import GROUP, PAID, Ledger
from tests.endurance.torture.place import Place
from tests.endurance.torture.plan import POINTS, SERVICES, Round, round_of
from tests.endurance.torture.processes import POLL_S, Killed, Processes
from tests.endurance.torture.strikes import ROLES, by_fault, notes, strikes_of
from txmq.check.recheck import RecheckJob
from txmq.ground.fail_points import FailPoint
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.admin.operator import Operator
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

SETTINGS = {
    "transaction_timeout_s": 2.0,
    "transaction_check_interval_s": 0.5,
    "transaction_check_max": 3,
    "listener_timeout_s": 2.0,
    "check_trigger_interval_s": 0.5,
    "deadline_join": "always",
    "check_lease_s": 2.5,
    "recheck_interval_s": 3.0,
    "park_retry_interval_s": 0.2,
    "publish_drain_s": 1.0,
    "publish_threads": 2,
    "half_queues": 2,
    "checkpoint_interval": 10,
    "maintenance_interval_s": 0.5,
    "log_reserved_time_s": 5.0,
    "topic_log_reserved_time_h": 0.01,
}
# Checks wait for their intervals, and a busy machine makes each pass slow.
DRAIN_WAIT_S = 1_800.0
OBSTACLE_S = 10.0
ARMED_PRODUCERS = 3  # for each that works at once
RETIRED_COPIES = 4


@dataclass
class State:
    """What is kept between rounds, so that a run that was cut short goes on."""

    seed: int
    rounds: int
    next_round: int = 0
    seconds: float = 0.0
    checkpoints_deleted: int = 0
    checkpoints_restored: int = 0
    rounds_with_two_brokers: int = 0
    killed: Killed = field(default_factory=Killed)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> State:
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "killed": Killed(**values["killed"])})

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


class Torture:
    """One run in one folder."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        rounds: int,
        *,
        with_spark: bool,
        say: Callable[[str], None],
    ) -> None:
        """Go on where an earlier run in this folder stopped."""
        self._folder, self._with_spark, self._say = folder, with_spark, say
        self._place = Place.read(folder)
        self._state_path = folder / "state.json"
        if self._state_path.exists():
            self.state = State.read(self._state_path)
        else:
            for name in ("logs", "happened", "stores"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            Store.create(self._place.location, Config(**SETTINGS))
            self.state = State(seed, rounds)
        self.store = Store.open(self._place.location)
        self.ledger = Ledger(folder / "ledger.sqlite")
        self._processes = Processes(folder, seed, self.state.killed, self.state.faults)

    @property
    def _has_brokers(self) -> bool:
        """With Spark; on an object store they work without it."""
        return self._with_spark or self._place.is_remote

    def run(self) -> dict[str, Any]:
        """All rounds that are left, then the end."""
        try:
            while self.state.next_round < self.state.rounds and not self.state.faults:
                begin_s = time.monotonic()
                self._round(round_of(self.state.next_round, self.state.rounds))
                self.state.next_round += 1
                self.state.seconds += time.monotonic() - begin_s
                self.state.write(self._state_path)
            return self._end()
        finally:
            self._processes.kill_all()

    # --- one round ------------------------------------------------------------------------------

    def _round(self, this: Round) -> None:
        (self._folder / "stop").unlink(missing_ok=True)
        brokers = this.brokers if self._has_brokers else 0
        self.state.rounds_with_two_brokers += brokers == 2
        obstacle = Path(self._place.files) / "topics" / this.topic
        if this.has_obstacle:
            obstacle.parent.mkdir(exist_ok=True)
            obstacle.touch()
        older = self._copied_checkpoints() if brokers else None
        # Spark's processes are struck by their kills alone.
        crew = ["producer"] if brokers else [*ROLES]
        self._processes.strike(strikes_of(self.state.seed, this.number, crew))
        self._start_producers(this)
        begin_s, left = time.monotonic(), ARMED_PRODUCERS * self._place.writers
        while self._producing() or left:
            for _ in self._processes.reap():
                pass
            self._keep_services(this, brokers, is_blocked=obstacle.is_file())
            if left and self._processes.alive("producer") < self._place.writers:
                self._processes.start("producer", this.number, armed=True)
                left -= 1
            if obstacle.is_file() and time.monotonic() - begin_s > OBSTACLE_S:
                obstacle.unlink()
            time.sleep(POLL_S)
        if obstacle.is_file():
            # On a quick machine a round is over before.
            obstacle.unlink()
        if older is not None:
            self._trouble_checkpoints(older)
        (self._folder / "stop").touch()
        self._processes.wait_for(*SERVICES, "frame producer", "creator")
        if self._is_last_with(this, brokers):
            self._processes.terminate("broker")
            self._processes.wait_for("broker")
        self._say(f"round {this.number}: {self.state.killed.total} kills")

    def _start_producers(self, this: Round) -> None:
        self._processes.start("busy producer", this.number, armed=False)
        self._processes.start("creator", this.number, armed=this.number % 3 == 0)
        if this.has_frames and self._with_spark:
            self._processes.start("frame producer", this.number, armed=True)

    def _producing(self) -> bool:
        return any(self._processes.alive(actor) for actor in ("busy producer", "producer"))

    def _keep_services(self, this: Round, brokers: int, *, is_blocked: bool) -> None:
        """Whoever died is started again, to die elsewhere."""
        for actor in () if brokers else SERVICES:
            if not self._processes.alive(actor):
                parks = is_blocked and actor == "publisher"
                at = FailPoint.TOPIC_PARKED if parks else None
                self._processes.start(actor, this.number, armed=True, at=at)
        while self._processes.alive("broker") < brokers:
            self._processes.start("broker", this.number, armed=True)

    def _is_last_with(self, this: Round, brokers: int) -> bool:
        following = round_of(this.number + 1, self.state.rounds).brokers
        return brokers > 0 and (following < brokers or this.number + 1 == self.state.rounds)

    # --- checkpoints ----------------------------------------------------------------------------

    def _checkpoints(self) -> Path:
        return Path(self._place.files) / "checkpoints"

    def _copied_checkpoints(self) -> Path:
        older = self._folder / "older-checkpoints"
        shutil.rmtree(older, ignore_errors=True)
        if self._checkpoints().exists():
            _copy_while_written(self._checkpoints(), older)
        return older

    def _trouble_checkpoints(self, older: Path) -> None:
        """Under the running brokers: delete what is there, put back what was there before."""
        shutil.rmtree(self._checkpoints(), ignore_errors=True)
        self.state.checkpoints_deleted += 1
        if older.exists():
            _copy_while_written(older, self._checkpoints())
            self.state.checkpoints_restored += 1

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> dict[str, Any]:
        """Drain by fresh services, compare with the ledger, verify, and retire copies."""
        self._drain()
        problems = [*self.state.faults, *self._differences()]
        problems += [line for line in notes(self._folder) if line.startswith("forked:")]
        report = verify(self.store.location)
        problems += [
            f"{one.invariant}: {one.violation_count}"
            for one in report.results
            if one.violation_count
        ]
        problems += self._retired_copies()
        result = self._result(report.counts, problems)
        (self._folder / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        return result

    def _drain(self) -> None:
        publisher, operator = Publisher(self.store), Operator(self.store)
        recheck = RecheckJob(self.store, listeners={GROUP: self.ledger})
        delay_service = DelayService(self.store)
        deadline_s = time.monotonic() + DRAIN_WAIT_S
        while time.monotonic() < deadline_s:
            publisher.run_once()
            recheck.run_once()
            operate(operator)
            publisher.run_once()
            waiting = delay_service.run_once().waiting
            publisher.run_once()
            states = {one.state.value for one in operator.open_transactions()}
            if not waiting and states <= {"DISCARDED"} and not _to_resume(operator):
                return
        self.state.faults.append("it did not come to rest")

    def _differences(self) -> list[str]:
        """A paid order that is not told, or one that is told and was not paid."""
        told: set[str] = set()
        for topic in self.store.topics():
            if topic not in (TRANS_CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC):
                table = self.store.tables.table_at(f"topics/{topic}")
                rows = table.rows.read(table.files.all(), ("transaction_id",))
                told |= set(rows["transaction_id"].to_pylist())
        paid = self.ledger.ids(PAID)
        return [f"paid and not told: {one}" for one in sorted(paid - told)] + [
            f"told and not paid: {one}" for one in sorted(told - paid)
        ]

    def _retired_copies(self) -> list[str]:
        """Retention forgets all that has ended, so it is tortured on a copy each."""
        problems = []
        for number in range(RETIRED_COPIES):
            folder = self._folder / f"retiring-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            for name in ("logs", "happened"):
                (folder / name).mkdir(parents=True)
            copied = self._place.copied(f"retired-{number}")
            copied.write(folder)
            shutil.copy(self.ledger.path, folder / "ledger.sqlite")
            problems += self._retired(folder, copied, number)
            copied.forget()
            shutil.rmtree(folder)
        return problems

    def _retired(self, folder: Path, copied: Place, number: int) -> list[str]:
        processes = Processes(folder, self.state.seed, self.state.killed, self.state.faults)
        for armed in (True, False):
            processes.start("retirer", number, armed=armed)
            processes.wait_for("retirer")
        store = Store.open(copied.location)
        report = verify(store.location)
        left = sum(file.num_records for file in store.tables.table_at("half").files.all())
        problems = [
            f"after retention {one.invariant}: {one.violation_count}"
            for one in report.results
            if one.violation_count
        ]
        return problems + ([f"{left} halves left after retention"] if left else [])

    def _result(self, counts: Any, problems: list[str]) -> dict[str, Any]:
        happened: Counter[str] = Counter()
        for path in (self._folder / "happened").iterdir():
            happened.update(json.loads(path.read_text(encoding="utf-8")))
        state, killed = self.state, self.state.killed
        planned = {point for points in POINTS.values() for point in points}
        left_out = set() if self._with_spark else {*_WITH_SPARK}
        wanted = [point for point in FailPoint if point in planned - left_out]
        return {
            "seed": state.seed,
            "rounds": state.rounds,
            "seconds": round(state.seconds),
            "transactions": counts["transactions"],
            "kills": killed.total,
            "points": len(killed.by_point),
            "kills_by_point": dict(sorted(killed.by_point.items())),
            "points_not_hit": [point for point in wanted if point not in killed.by_point],
            "struck": by_fault(notes(self._folder)),
            "checkpoints_deleted": state.checkpoints_deleted,
            "checkpoints_restored": state.checkpoints_restored,
            "rounds_with_two_brokers": state.rounds_with_two_brokers,
            "counts": dict(counts),
            "producers_saw": dict(sorted(happened.items())),
            "problems": problems,
        }


_WITH_SPARK = (FailPoint.TIMER_FIRED, FailPoint.FRAMES_WRITTEN, FailPoint.FRAMES_COMMITTED)


def _to_resume(operator: Operator) -> bool:
    return any(
        one.life == 0 and int(one.transaction_id[-1], 16) % 2 for one in operator.discarded()
    )


def _copy_while_written(source: Path, target: Path) -> None:
    """Files that go away meanwhile are left out, as in any copy of a running system."""

    def copy(origin: str, goal: str) -> None:
        try:
            shutil.copy2(origin, goal)
        except FileNotFoundError:
            return

    try:
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)
    except (shutil.Error, FileNotFoundError):
        return
