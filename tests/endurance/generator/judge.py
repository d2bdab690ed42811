"""Holds what callers were told against what readers saw."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.endurance.generator.ledger import Answer
from tests.endurance.generator.world import BOOKINGS, READERS, TOPICS, World
from txmq.errors import TxmqError
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.admin.status import Admin
from txmq.verify import verify
from txmq.verify.report import InvariantResult

SHOWN_BODIES = 5
EARLY_S = 1.0
_GROUPS = {"member": READERS, "inbox": BOOKINGS}


class Kind(enum.StrEnum):
    """What may be wrong, the worst first."""

    LOST = "acknowledged and never shown"
    SWALLOWED = "acknowledged by a damaged store, never shown, and no error says so"
    REFUSED_IS_SHOWN = "refused and shown"
    DOUBLED = "shown twice"
    EFFECT_LOST = "shown and without its effect"
    EFFECT_DOUBLED = "its effect is there twice"
    GROUP_MISSED = "shown and never handed to a group"
    EARLY = "shown before its time"
    STUCK = "a service fails though all is healed"
    STRANGE = "an error that is none of txmq's"
    VERIFY = "verify finds what callers do not see"


@dataclass(frozen=True)
class Find:
    """Something wrong.

    Attributes:
        verify_says: the promises that `verify` finds broken; None where it was not asked.
    """

    kind: Kind
    detail: str
    verify_says: tuple[str, ...] | None = None

    def __str__(self) -> str:
        says = "" if self.verify_says is None else f"; verify: {', '.join(self.verify_says) or '-'}"
        return f"{self.kind.name}: {self.detail}{says}"


@dataclass(frozen=True)
class Seen:
    """The rows of the topics: how often each body is there, and when it was written."""

    counts: dict[str, Counter[str]]
    written_s: dict[str, float]


def findings(world: World) -> list[Find]:
    """All that is wrong at the end of a run, the worst first."""
    seen = _seen(world)
    broken = _verified(world)
    finds = [*_messages(world, seen), *_readers(world, seen), *_services(world)]
    if broken and not finds:
        finds.append((Kind.VERIFY, ", ".join(broken)))
    order = list(Kind)
    finds.sort(key=lambda find: order.index(find[0]))
    return [Find(kind, detail, broken) for kind, detail in finds]


def _verified(world: World) -> tuple[str, ...] | None:
    if world.ledger.is_damaged:
        return None
    try:
        report = verify(world.location)
    except TxmqError as error:
        return (f"{type(error).__name__}: {error}",)
    return tuple(
        result.invariant
        for result in report.results
        if result.violation_count and not _is_told(world, result)
    )


def _is_told(world: World, result: InvariantResult) -> bool:
    """Whether callers were told of each violation: verify sees claims, and no errors."""
    rows = {violation.row_id for violation in result.violations}
    is_whole = len(result.violations) == result.violation_count
    return result.invariant == "I28" and is_whole and rows <= world.ledger.forgotten


def _seen(world: World) -> Seen:
    counts: dict[str, Counter[str]] = {}
    written_s: dict[str, float] = {}
    for topic in TOPICS:
        counts[topic] = Counter()
        for path in _data_files(world.location / "topics" / topic):
            bodies = [
                body.decode() for body in pq.read_table(path, columns=["body"])["body"].to_pylist()
            ]
            counts[topic].update(bodies)
            written_s |= dict.fromkeys(bodies, path.stat().st_mtime)
    return Seen(counts, written_s)


def _data_files(table: Path) -> list[Path]:
    """The live files that are there and can be read."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    paths = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(table)).file_uris()]
    return [path for path in paths if path.exists() and path.stat().st_size]


# --- messages -------------------------------------------------------------------------------------


def _messages(world: World, seen: Seen) -> Iterator[tuple[Kind, str]]:
    ledger = world.ledger
    shown = ledger.bodies(Answer.SHOWN)
    missing = sorted((topic, body) for topic, body in shown if not seen.counts[topic][body])
    if missing and ledger.is_damaged:
        if not _says_so(world):
            yield Kind.SWALLOWED, _listed(missing)
    elif missing:
        yield Kind.LOST, _listed(missing) + _parked(world)
    possible = shown | ledger.bodies(Answer.EITHER)
    wrong = sorted(
        (topic, body)
        for topic, body in ledger.bodies(Answer.HIDDEN) - possible
        if seen.counts[topic][body]
    )
    if wrong:
        yield Kind.REFUSED_IS_SHOWN, _listed(wrong)
    twice = [(t, body) for t in TOPICS for body, count in seen.counts[t].items() if count > 1]
    if twice:
        yield Kind.DOUBLED, _listed(twice)
    early = [
        (promise.topic, promise.body)
        for promise in ledger.promises
        if promise.due_s is not None
        and seen.written_s.get(promise.body, promise.due_s) < promise.due_s - EARLY_S
    ]
    if early:
        yield Kind.EARLY, _listed(early)


def _says_so(world: World) -> bool:
    return bool(world.ledger.errors) or bool(_parked(world)) or _is_set_aside(world)


def _is_set_aside(world: World) -> bool:
    """Whether status names transactions whose halves are not there."""
    with suppress(TxmqError):
        return bool(Admin(world.store()).status().set_aside)
    return False


def _parked(world: World) -> str:
    try:
        parked = Admin(world.store()).status().parked
    except TxmqError as error:
        return f"; status says {type(error).__name__}"
    return f"; parked: {parked}" if parked else ""


# --- readers --------------------------------------------------------------------------------------


def _readers(world: World, seen: Seen) -> Iterator[tuple[Kind, str]]:
    ledger = world.ledger
    if not ledger.handled or (ledger.is_damaged and _says_so(world)):
        return
    bodies = {(topic, body) for topic in TOPICS for body in seen.counts[topic]}
    for role, group in _GROUPS.items():
        is_told = any(who.startswith(role) for who in ledger.errors)
        handled = ledger.handled.get(group, Counter())
        excused = {body for where, body in ledger.failed_before if where == group}
        excused |= _waiting(world)
        missed = sorted((t, b) for t, b in bodies if not handled[b] and b not in excused)
        if missed and not is_told and group == READERS:
            yield Kind.GROUP_MISSED, _listed(missed)
    effects: Counter[str] = Counter()
    for path in _data_files(world.effects):
        effects.update(pq.read_table(path, columns=["body"])["body"].to_pylist())
    if any(who.startswith("inbox") for who in ledger.errors) or ledger.is_older:
        return
    excused = {body for group, body in ledger.failed_before if group == BOOKINGS}
    lost = sorted((t, b) for t, b in bodies if not effects[b] and b not in excused)
    if lost:
        yield Kind.EFFECT_LOST, _listed(lost)
    doubled = [("effects", body) for body, count in effects.items() if count > 1]
    if doubled:
        yield Kind.EFFECT_DOUBLED, _listed(doubled)


def _waiting(world: World) -> set[str]:
    """Messages whose time has not come: a pause counts by the made-up clock of who sent them back.

    The storage's own times, by which it counts otherwise, are not made up everywhere.
    """
    waiting: set[str] = set()
    for path in _data_files(world.location / "topics" / SCHEDULE_TOPIC):
        rows = pq.read_table(path, columns=["body", "deliver_timestamp"])
        due_s = rows["deliver_timestamp"].cast(pa.int64()).to_numpy() / 1e6
        is_later = pa.array(due_s > world.simulation.now_s)
        waiting |= {body.decode() for body in rows.filter(is_later)["body"].to_pylist()}
    return waiting


def _services(world: World) -> Iterator[tuple[Kind, str]]:
    ledger = world.ledger
    if ledger.errors and not ledger.is_damaged:
        yield Kind.STUCK, "; ".join(f"{who}: {text}" for who, text in sorted(ledger.errors.items()))
    if ledger.strange:
        yield Kind.STRANGE, ledger.strange[0]


def _listed(bodies: list[tuple[str, str]]) -> str:
    by_topic: defaultdict[str, list[str]] = defaultdict(list)
    for topic, body in bodies[:SHOWN_BODIES]:
        by_topic[topic].append(body)
    more = f" and {len(bodies) - SHOWN_BODIES} more" if len(bodies) > SHOWN_BODIES else ""
    return "; ".join(f"{topic}: {', '.join(names)}" for topic, names in by_topic.items()) + more
