"""Holds what callers were told against what readers saw."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from tests.endurance.generator.deeds import rows_of
from tests.endurance.generator.ledger import Answer, Place
from tests.endurance.generator.operators import broken_of, findings_of_doctor, report_of
from tests.endurance.generator.strangers import bodies_in
from tests.endurance.generator.world import BOOKINGS, GROUPS, TOPICS, World, readable_files
from txmq.consumer.send_back import FIRST_DELAY_LEVEL
from txmq.errors import CommitConflictError, CommitRefusedError, TxmqError
from txmq.message.names import SCHEDULE_TOPIC, retry_topic
from txmq.ops.admin.status import Admin

SHOWN_BODIES = 5
EARLY_S = 1.0
LOST_RACES = (CommitConflictError.__name__, CommitRefusedError.__name__)


class Kind(enum.StrEnum):
    """What may be wrong, the worst first."""

    LOST = "acknowledged and never shown"
    SWALLOWED = "acknowledged by a damaged store, never shown, and no error says so"
    REFUSED_IS_SHOWN = "refused and shown"
    DOUBLED = "shown twice"
    ERASED_IS_BACK = "erased and there again"
    UNTOLD = "taken by another program, and nothing says so"
    UNPAID = "shown without its local transaction"
    WRONG_TYPE = "a typed topic shows a body of another type"
    EFFECT_LOST = "shown and without its effect"
    EFFECT_DOUBLED = "its effect is there twice"
    BESIDE_RETRY = "handed out again beside its retry"
    OUT_OF_ORDER = "handled in a group that keeps order before an earlier one of its queue"
    CAME_AGAIN = "handed out again after it was acknowledged"
    GROUP_MISSED = "shown and never handed to a group"
    EARLY = "shown before its time"
    ASKED = "asked about while its producer lives and renews it"
    STUCK = "a service fails though all is healed"
    MISLED = "a service is told that others were faster, and there are none"
    STRANGE = "an error that is none of txmq's"
    VERIFY = "verify finds what callers do not see"
    WITNESSES = "verify is clean and the doctor is silent while something is lost or doubled"


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
    """The rows of the topics: how often each body is there, and when it was written.

    Attributes:
        places: at how many offsets it was, in a topic whose rows may be removed.
    """

    counts: dict[str, Counter[str]]
    written_s: dict[str, float]
    places: dict[str, Counter[str]]


# What the two witnesses must see by the tables alone.
SEEN_BY_WITNESSES = frozenset([Kind.LOST, Kind.DOUBLED, Kind.UNTOLD])


def findings(world: World) -> list[Find]:
    """All that is wrong at the end of a run, the worst first."""
    seen = _seen(world)
    strange: list[str] = []
    broken = _asked("verify", strange, lambda: broken_of(world, report_of(world, drained=True)))
    told = _asked("doctor", strange, lambda: findings_of_doctor(world))
    finds = [*_messages(world, seen, told), *_readers(world, seen), *_services(world)]
    finds += [(Kind.STRANGE, text) for text in strange]
    finds += [(Kind.ASKED, transaction) for transaction in world.ledger.asked_too_early]
    wrong = [*world.ledger.looks, *([] if world.is_spoiled else broken)]
    if wrong and not finds:
        finds.append((Kind.VERIFY, ", ".join(wrong)))
    if not (broken or told) and SEEN_BY_WITNESSES & {kind for kind, _ in finds}:
        finds.append((Kind.WITNESSES, finds[0][0]))
    order = list(Kind)
    finds.sort(key=lambda find: order.index(find[0]))
    return [Find(kind, detail, tuple(broken)) for kind, detail in finds]


def _asked(who: str, strange: list[str], ask: Callable[[], list[str]]) -> list[str]:
    """What a witness says; an error of txmq says something too, any other is a find."""
    try:
        return ask()
    except TxmqError as error:
        return [f"{type(error).__name__}: {error}"]
    except Exception as error:  # noqa: BLE001 - no caller should meet it
        strange.append(f"{who}: {type(error).__name__}: {error}")
        return []


def _seen(world: World) -> Seen:
    counts: dict[str, Counter[str]] = {}
    written_s: dict[str, float] = {}
    for topic in TOPICS:
        counts[topic] = Counter()
        for path in readable_files(world.location / "topics" / topic):
            bodies = [
                (body or b"").decode(errors="replace")
                for body in pq.read_table(path, columns=["body"])["body"].to_pylist()
            ]
            counts[topic].update(bodies)
            written_s |= dict.fromkeys(bodies, path.stat().st_mtime)
    return Seen(counts, written_s, {topic: _places(world, topic) for topic in TOPICS})


def _places(world: World, topic: str) -> Counter[str]:
    earlier = world.ledger.shown_earlier.get(topic)
    rows = set() if earlier is None else rows_of(world, topic) | earlier
    return Counter(body for body, _, _ in rows)


# --- messages -------------------------------------------------------------------------------------


def _messages(world: World, seen: Seen, told: list[str]) -> Iterator[tuple[Kind, str]]:
    ledger = world.ledger
    shown = ledger.bodies(Answer.SHOWN)
    earlier = {(t, body) for t, rows in ledger.shown_earlier.items() for body, _, _ in rows}
    missing = sorted(
        one for one in shown - earlier - _of_taken_keys(world, seen) if not _is_seen(seen, one)
    )
    if missing and ledger.is_damaged:
        if not _says_so(world):
            yield Kind.SWALLOWED, _listed(missing)
    elif missing:
        yield Kind.LOST, _listed(missing) + _parked(world)
    yield from _kept_from_damage(world, seen, told)
    possible = shown | ledger.bodies(Answer.EITHER)
    wrong = sorted(
        (topic, body)
        for topic, body in ledger.bodies(Answer.HIDDEN) - possible
        if seen.counts[topic][body]
    )
    if wrong:
        yield Kind.REFUSED_IS_SHOWN, _listed(wrong)
    sent = {promise.place for promise in ledger.promises}
    twice = [(t, body) for t, body in sent if max(seen.counts[t][body], seen.places[t][body]) > 1]
    if twice:
        yield Kind.DOUBLED, _listed(sorted(twice))
    yield from _strange_messages(world, seen)
    early = [
        (promise.topic, promise.body)
        for promise in ledger.promises
        if promise.due_s is not None
        and seen.written_s.get(promise.body, promise.due_s) < promise.due_s - EARLY_S
    ]
    if early:
        yield Kind.EARLY, _listed(early)


def _of_taken_keys(world: World, seen: Seen) -> set[Place]:
    """Return what was sent under a key that another try has taken since the store went back.

    A caller who asks for the end of the key is told that of the other try.
    """
    if not world.ledger.is_older:
        return set()
    keyed = [one for one in world.ledger.promises if " " in one.asked_by]
    taken = {one.asked_by.split()[1] for one in keyed if _is_seen(seen, one.place)}
    return {one.place for one in keyed if one.asked_by.split()[1] in taken}


def _strange_messages(world: World, seen: Seen) -> Iterator[tuple[Kind, str]]:
    """What is there and must not be, whoever asked for it."""
    back = sorted(one for one in world.ledger.erased if _is_seen(seen, one))
    if back:
        yield Kind.ERASED_IS_BACK, _listed(back)
    unpaid = sorted(one for one in _unpaid(world) if _is_seen(seen, one))
    if unpaid:
        yield Kind.UNPAID, _listed(unpaid)
    for topic in TOPICS:
        if seen.counts[topic] and _is_typed(world, topic):
            yield Kind.WRONG_TYPE, _listed([(topic, body) for body in seen.counts[topic]])


def _is_typed(world: World, topic: str) -> bool:
    with suppress(TxmqError):
        settings = world.store().tables.topic_register().read().settings
        return topic in settings and settings[topic].body is not None
    return False


def _unpaid(world: World) -> set[Place]:
    """Messages whose local transaction is not there, or was undone before they had an end."""
    ledger = world.ledger
    paid = {*bodies_in(world, "payments"), *ledger.paid}
    sold = (one for one in ledger.promises if one.asked_by.startswith("payer"))
    return {one.place for one in sold if one.body not in paid or one.body in ledger.unpaid}


def _kept_from_damage(world: World, seen: Seen, told: list[str]) -> Iterator[tuple[Kind, str]]:
    """What a backup had is there again; what another program took is told."""
    ledger = world.ledger
    lost = sorted(one for one in ledger.kept_in_backup - ledger.given_up if not _is_seen(seen, one))
    if lost and ledger.is_damaged:
        yield Kind.LOST, "in a backup: " + _listed(lost)
    taken = sorted(one for one in ledger.taken - ledger.given_up if not _is_seen(seen, one))
    is_told = told or any(who.startswith("publisher") for who in ledger.errors)
    if taken and not is_told:
        yield Kind.UNTOLD, _listed(taken)


def _is_seen(seen: Seen, place: Place) -> bool:
    return bool(seen.counts[place[0]][place[1]])


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
    sent = (one.place for one in ledger.promises if one.body not in ledger.outlived)
    bodies = {place for place in sent if _is_seen(seen, place)}
    if ledger.beside_retry:
        yield Kind.BESIDE_RETRY, _listed(ledger.beside_retry)
    if ledger.came_again:
        yield Kind.CAME_AGAIN, _listed(ledger.came_again)
    if hasty := _hasty(world):
        yield Kind.OUT_OF_ORDER, ", ".join(map(str, hasty[:SHOWN_BODIES]))
    for role, group in GROUPS.items():
        if group in ledger.handled and group != BOOKINGS:
            yield from _missed(world, role, bodies)
    if BOOKINGS in ledger.handled:
        yield from _effects(world, bodies)


def _missed(world: World, role: str, bodies: set[Place]) -> Iterator[tuple[Kind, str]]:
    """What is there and was never handed to a group."""
    ledger, group = world.ledger, GROUPS[role]
    if any(who.startswith(role) for who in ledger.errors):
        return
    excused = {body for where, body in ledger.failed_before if where == group}
    excused |= _waiting(world, role)
    handled = ledger.handled[group]
    missed = sorted((t, b) for t, b in bodies if not handled[b] and b not in excused)
    if missed:
        yield Kind.GROUP_MISSED, f"{group}: {_listed(missed)}"


def _effects(world: World, bodies: set[Place]) -> Iterator[tuple[Kind, str]]:
    """Effects that are not there, or twice."""
    ledger = world.ledger
    effects: Counter[str] = Counter()
    for path in readable_files(world.effects):
        effects.update(pq.read_table(path, columns=["body"])["body"].to_pylist())
    if any(who.startswith("inbox") for who in ledger.errors) or ledger.is_older:
        return
    excused = {body for group, body in ledger.failed_before if group == BOOKINGS}
    excused |= ledger.undone | _waiting(world, "inbox")
    lost = sorted((t, b) for t, b in bodies if not effects[b] and b not in excused)
    if lost:
        yield Kind.EFFECT_LOST, _listed(lost)
    doubled = [("effects", body) for _, body in sorted(bodies) if effects[body] > 1]
    if doubled:
        yield Kind.EFFECT_DOUBLED, _listed(doubled)


def _hasty(world: World) -> list[tuple[str, int, int]]:
    """Places of a queue that were handled before an earlier one of it was done.

    Of an older store the offsets may be those of other messages, and operators may have let the
    earlier one go.
    """
    ledger = world.ledger
    if ledger.is_older:
        return []
    given: dict[tuple[str, int, int], int] = {}
    done: dict[tuple[str, int, int], int] = {}
    for at, (topic, queue_id, offset, is_done) in enumerate(ledger.calls):
        if topic not in ledger.emptied:
            (done if is_done else given).setdefault((topic, queue_id, offset), at)
    return [
        after
        for before, after in pairwise(sorted(given))
        if before[:2] == after[:2] and given[after] < done.get(before, len(ledger.calls))
    ]


def _waiting(world: World, role: str) -> set[str]:
    """Return what a group has failed on and whose retry is not due yet."""
    is_own = [("topic", "=", retry_topic(GROUPS[role]))]
    waiting: set[str] = set()
    for path in readable_files(world.location / "topics" / SCHEDULE_TOPIC):
        rows = pq.read_table(path, columns=["body", "deliver_timestamp"], filters=is_own)
        due_s = (rows["deliver_timestamp"].cast(pa.int64()).to_numpy() / 1e6).tolist()
        bodies = ((body or b"").decode(errors="replace") for body in rows["body"].to_pylist())
        waiting |= {
            body
            for body, at_s in zip(bodies, due_s, strict=True)
            if world.ledger.read_s < at_s <= _latest_retry_s(world, role, body)
        }
    return waiting


def _latest_retry_s(world: World, role: str, body: str) -> float:
    """Return when the last retry of a body is due by the clock of any member of its group.

    In earnest a pause counts by the storage's times, which are not made up here.
    """
    ledger, levels = world.ledger, world.config.delay_levels_s
    failed = ledger.failed[GROUPS[role], body]
    if not failed:
        return 0.0
    pause_s = levels[min(FIRST_DELAY_LEVEL + len(failed) - 1, len(levels)) - 1]
    return failed[-1] + pause_s + ledger.ahead_s[role] + EARLY_S


def _services(world: World) -> Iterator[tuple[Kind, str]]:
    ledger = world.ledger
    errors = [f"{who}: {text}" for who, text in sorted(ledger.errors.items())]
    if errors and not ledger.is_damaged:
        yield Kind.STUCK, "; ".join(errors)
    # Nobody works beside another when all is healed.
    misled = [text for text in errors if any(name in text for name in LOST_RACES)]
    if misled:
        yield Kind.MISLED, "; ".join(misled)
    if ledger.strange:
        yield Kind.STRANGE, ledger.strange[0]


def _listed(bodies: list[tuple[str, str]]) -> str:
    by_topic: defaultdict[str, list[str]] = defaultdict(list)
    for topic, body in bodies[:SHOWN_BODIES]:
        by_topic[topic].append(body)
    more = f" and {len(bodies) - SHOWN_BODIES} more" if len(bodies) > SHOWN_BODIES else ""
    return "; ".join(f"{topic}: {', '.join(names)}" for topic, names in by_topic.items()) + more
