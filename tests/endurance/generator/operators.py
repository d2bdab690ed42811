"""What operators do: commands, each of which may come between two steps of another, and looks."""

from __future__ import annotations

import shutil
from contextlib import suppress

from tests.endurance.generator.deeds import rows_of, told
from tests.endurance.generator.ledger import Answer
from tests.endurance.generator.plan import Step
from tests.endurance.generator.simulation import Life
from tests.endurance.generator.world import (
    BOOKINGS,
    GROUP,
    NEW_KEY,
    OLD_KEY,
    READERS,
    TOPICS,
    Deed,
    World,
)
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import BodySchemaConflictError, NotRecalledError
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import LocalTransactionState
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.erasure import Erasure
from txmq.ops.admin.groups import ConsumerGroups
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.topics import Topics
from txmq.ops.admin.upgrade import upgrade as upgraded
from txmq.ops.backup.backup import back_up
from txmq.ops.backup.restore import restore
from txmq.verify import verify as verified
from txmq.verify.report import VerifyReport

WHY = "an operator of the generator"
TYPED = {
    "encoding": "json",
    "schema": {"type": "record", "name": "order", "fields": [{"name": "number", "type": "long"}]},
}
RESERVED_H = 1.0
# What the doctor says of these does not say that a message is lost.
OF_THE_MACHINE = ("package", "Java", "disk", "clock", "storage", "rights", "brokers", "group ")


def _topics(world: World, life: Life) -> Topics:
    return Topics(world.store(life.name), clock=world.clock(life.name))


def _there(world: World, step: Step) -> str | None:
    """The topic that a number means, where it is there."""
    topic = TOPICS[step.what % 2]
    return topic if (world.location / "topics" / topic).exists() else None


# --- topics ---------------------------------------------------------------------------------------


def rebuild(world: World, life: Life, step: Step) -> None:
    if topic := _there(world, step):
        _topics(world, life).rebuild(topic, apply=True)
        # What it has brought back is not what another program has taken.
        world.ledger.taken -= {(topic, body) for body, _, _ in rows_of(world, topic)}


def delete(world: World, life: Life, step: Step) -> None:
    """What was acknowledged before it returns may be gone; what comes later must be shown."""
    if topic := _there(world, step):
        promises = [one for one in world.ledger.promises if one.topic == topic]
        world.ledger.emptied.add(topic)
        try:
            _topics(world, life).delete(topic, apply=True)
        finally:
            # Those whose caller waits meanwhile get their answers after the deletion.
            world.ledger.give_up(one.place for one in promises)


def retain(world: World, life: Life, step: Step) -> None:
    """Maintenance removes the messages of a topic after an hour."""
    if topic := _there(world, step):
        world.ledger.shown_earlier.setdefault(topic, rows_of(world, topic))
        world.ledger.emptied.add(topic)
        _topics(world, life).alter(topic, reserved_time_h=RESERVED_H)


def retype(world: World, life: Life, step: Step) -> None:
    """A topic takes JSON alone from now on, which nobody of this run sends."""
    topics, topic = _topics(world, life), TOPICS[step.what % 2]
    with suppress(BodySchemaConflictError):
        if topic in world.store(life.name).topics():
            topics.alter(topic, body=TYPED)
        else:
            topics.create(topic, body=TYPED)


# --- messages -------------------------------------------------------------------------------------


def erase(world: World, life: Life, step: Step) -> None:
    """Erase the messages of one body, which is their key."""
    promises = [one for one in world.ledger.promises if " " not in one.body]
    if not promises:
        return
    promise = promises[step.what % len(promises)]
    is_acknowledged = promise.answer is Answer.SHOWN or bool(promise.message_id)
    world.ledger.give_up([promise.place])
    erasure = Erasure(world.store(life.name), promise.body, clock=world.clock(life.name))
    report = erasure.apply(reason=WHY)
    if is_acknowledged and report.messages and not report.on_their_way:
        world.ledger.erased.add(promise.place)


def recall(world: World, life: Life, step: Step) -> None:
    delayed = [one for one in world.ledger.promises if one.due_s is not None and one.message_id]
    if not delayed:
        return
    promise = delayed[step.what % len(delayed)]
    answer, promise.answer = promise.answer, Answer.EITHER
    try:
        world.producer(life.name).recall(promise.message_id)
    except NotRecalledError:
        promise.answer = answer
        raise
    promise.answer = Answer.HIDDEN


def resolve(world: World, life: Life, step: Step) -> None:
    waiting = world.ledger.waiting()
    if not waiting:
        return
    transaction = waiting[step.what // 2 % len(waiting)]
    kind = (ClaimKind.COMMIT, ClaimKind.ROLLBACK)[step.what % 2]
    answer = (Answer.SHOWN, Answer.HIDDEN)[step.what % 2]
    operator = Operator(world.store(life.name), clock=world.clock(life.name))
    with told(transaction, kind, answer):
        operator.resolve(transaction.id, LocalTransactionState(kind.value), reason=WHY, apply=True)


def resume(world: World, life: Life, step: Step) -> None:
    """A discarded transaction is asked about again; its listener says what becomes of it."""
    ended = [one for one in world.ledger.open if one.promises[0].answer is not Answer.SHOWN]
    if not ended:
        return
    transaction = ended[step.what % len(ended)]
    operator = Operator(world.store(life.name), clock=world.clock(life.name))
    operator.resume(transaction.id, reason=WHY, apply=True)
    # A claim of the life before ends nothing any more.
    may_commit = transaction.listener_says == "COMMIT"
    for promise in transaction.promises:
        promise.answer = Answer.EITHER if may_commit else Answer.HIDDEN


def reset(world: World, life: Life, step: Step) -> None:
    """A group reads a topic from its first message again."""
    group = (READERS, BOOKINGS)[step.what // 2 % 2]
    if group not in world.ledger.handled:
        return
    if topic := _there(world, step):
        ledger = world.ledger
        ledger.sent_back = {one for one in ledger.sent_back if one[0] != group}
        groups = ConsumerGroups(world.store(life.name), clock=world.clock(life.name))
        groups.reset_offsets(group, topic, ConsumeFromWhere.FIRST_OFFSET, apply=True, force=True)
        if group == BOOKINGS:
            # All of them are applied again, or the inbox says why not.
            ledger.undone -= {one.body for one in ledger.promises if one.topic == topic}


# --- the store ------------------------------------------------------------------------------------


def upgrade(world: World, life: Life, _: Step) -> None:
    upgraded(world.store(life.name), apply=True)


def backup(world: World, life: Life, _: Step) -> None:
    folder, ledger = world.simulation.root / "backup", world.ledger
    acknowledged = set() if ledger.is_damaged else ledger.bodies(Answer.SHOWN)
    back_up(
        world.store(life.name), folder, clock=world.clock(life.name),
        on_progress=lambda _: world.simulation.passed("copied"),
    )  # fmt: skip
    world.has_backup = True
    ledger.kept_in_backup = acknowledged


def restore_backup(world: World, _: Life, __: Step) -> None:
    """A store of the backup takes the place of the store, under all who live."""
    if world.has_backup:
        shutil.rmtree(world.location)
        acknowledged = world.ledger.kept_in_backup
        restore(world.simulation.root / "backup", world.location)
        world.ledger.go_back()
        world.ledger.kept_in_backup = acknowledged


# --- looks ----------------------------------------------------------------------------------------


def verify(world: World, _: Life, __: Step) -> None:
    """Look on while others are at work: nothing that was acknowledged is lost or doubled."""
    report = report_of(world, drained=False)
    # Meanwhile nobody need deliver what is due.
    broken = [one for one in broken_of(world, report) if one != "I27"]
    world.ledger.looks += [] if world.is_spoiled else broken


def doctor(world: World, life: Life, _: Step) -> None:
    Doctor(world.store(life.name), clock=world.clock(life.name)).examine()


def report_of(world: World, *, drained: bool) -> VerifyReport:
    """What `verify` says, by the keys that are in use."""
    keys = {GROUP: [OLD_KEY, NEW_KEY]} if world.config.claim_keys else {}
    return verified(world.location, drained=drained, claim_keys=keys)


def broken_of(world: World, report: VerifyReport) -> list[str]:
    """The promises that `verify` finds broken, but for what callers were told by an error."""
    return [
        result.invariant
        for result in report.results
        if result.violation_count
        and not (
            result.invariant == "I28"
            and len(result.violations) == result.violation_count
            and {one.row_id for one in result.violations} <= world.ledger.forgotten
        )
    ]


def findings_of_doctor(world: World) -> list[str]:
    """What the doctor says of tables; of this machine it may say what it likes."""
    diagnosis = Doctor(world.store(), clock=world.clock("doctor")).examine()
    return [str(one) for one in diagnosis.findings if not one.where.startswith(OF_THE_MACHINE)]


COMMANDS: dict[str, Deed] = {
    "erase": erase, "rebuild": rebuild, "reset": reset, "delete": delete, "retain": retain,
    "retype": retype, "backup": backup, "restore backup": restore_backup, "upgrade": upgrade,
    "resolve": resolve, "resume": resume, "recall": recall,
}  # fmt: skip
LOOKS: dict[str, Deed] = {"verify": verify, "doctor": doctor}
