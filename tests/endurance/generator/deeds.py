"""What a step does: one call of one process, and what its caller was told."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.endurance.generator.ledger import Answer, OpenTransaction, answered, refusal
from tests.endurance.generator.plan import Step
from tests.endurance.generator.simulation import BEGIN_S, IO_ERROR, NO_SPACE, Life
from tests.endurance.generator.world import TOPICS, Deed, World
from tests.kit.fault_vocabulary import CLOCK_JUMPS_S, TABLES
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import LocalTransactionState, Message
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.topics import Topics

PAUSES_S = (1.0, 10.0, 20.0, 40.0, 700.0, 4_000.0, 90_000.0, 4 * 86_400.0)
DELAYS_S = (5, 15, 60, 1_800)
ANSWERS = ("COMMIT", "ROLLBACK", "UNKNOWN")
KEY_TIME = datetime.fromtimestamp(BEGIN_S, UTC)
# As `cp -a` copies them: by their names.
COPIED_IN_TURN = ("half", "op", "settled", "state", "topics")
RESTORED_ALONE = (
    "half", "op", "settled", "topics/alpha", "topics/beta", "topics/SCHEDULE_TOPIC_XXXX",
    "state/publisher", "state/delay", "state/group_readers",
)  # fmt: skip
DAMAGED = ("half", "op", "settled", "topics/alpha", "topics/beta", "topics/SCHEDULE_TOPIC_XXXX")


# --- producers ------------------------------------------------------------------------------------


def send(world: World, life: Life, step: Step) -> None:
    _send(world, life, step, None)


def delayed(world: World, life: Life, step: Step) -> None:
    _send(world, life, step, DELAYS_S[step.what % len(DELAYS_S)])


def _send(world: World, life: Life, step: Step, delay_s: int | None) -> None:
    topic = TOPICS[step.what % 2]
    # A handler fails once on those that begin with p.
    body = world.ledger.new_body("p" if step.what % 3 == 0 else "s")
    due_s = None if delay_s is None else world.simulation.now_s + delay_s
    promise = world.ledger.promise(topic, body, life.name, due_s)
    message = Message(topic, body.encode(), delay_s=delay_s)
    try:
        world.producer(life.name).send(message)
    except BaseException as error:
        # A send that got no answer may have landed.
        promise.answer = refusal(error, is_prepared=True)
        raise
    promise.answer = Answer.SHOWN


def prepare(world: World, life: Life, step: Step) -> None:
    topics = TOPICS if step.what % 3 == 0 else (TOPICS[step.what % 2],)
    producer = world.producer(life.name)
    call = producer.begin_transaction()
    promises = [world.ledger.promise(t, world.ledger.new_body("t"), life.name) for t in topics]
    says = ANSWERS[step.what // 3 % len(ANSWERS)]
    for promise in promises:
        call.send(Message(promise.topic, promise.body.encode()))
    try:
        call.prepare()
    except BaseException as error:
        # Nobody makes a local transaction of these, so nobody ends them with COMMIT.
        answered(promises, refusal(error, is_prepared=False))
        raise
    world.ledger.open.append(OpenTransaction(call.id, life.name, call, promises, says, producer))


def commit(world: World, life: Life, step: Step) -> None:
    _end(world, life, step, ClaimKind.COMMIT, Answer.SHOWN)


def rollback(world: World, life: Life, step: Step) -> None:
    _end(world, life, step, ClaimKind.ROLLBACK, Answer.HIDDEN)


def _end(world: World, life: Life, step: Step, kind: ClaimKind, answer: Answer) -> None:
    waiting = [one for one in world.ledger.open if one.promises[0].answer is Answer.EITHER]
    waiting = [one for one in waiting if one.who == life.name] or waiting
    if not waiting:
        return
    transaction = waiting[step.what % len(waiting)]
    try:
        _claim(world, life, transaction, kind)
    except BaseException as error:
        answered(transaction.promises, _refused_end(error, kind))
        raise
    answered(transaction.promises, answer)


def _claim(world: World, life: Life, transaction: OpenTransaction, kind: ClaimKind) -> None:
    """By the call that prepared it, while its process lives; else by its id alone."""
    producer = world.producer(life.name)
    if transaction.maker is producer:
        transaction.call.commit() if kind is ClaimKind.COMMIT else transaction.call.rollback()
    else:
        producer.end_transaction(transaction.id, LocalTransactionState(kind.value))


def _refused_end(error: BaseException, kind: ClaimKind) -> Answer:
    answer = refusal(error, is_prepared=True)
    # An error that refuses a ROLLBACK says nothing of the messages, but where it names the end.
    is_named = hasattr(error, "resolution")
    return answer if kind is ClaimKind.COMMIT or is_named else Answer.EITHER


def try_again(world: World, life: Life, step: Step) -> None:
    """A job with a key, which sends, commits, and may be tried again with the same or others."""
    key, variant = f"key{step.what % 2}", step.what // 2 % 3
    topic = TOPICS[step.what % 2]
    body = world.ledger.new_body(f"{key} ") if variant == 2 else f"{key} alike"
    promise = world.ledger.promise(topic, body, f"{life.name} {key}")
    call = world.producer(life.name).begin_transaction(idempotency_key=key, key_timestamp=KEY_TIME)
    call.send(Message(topic, body.encode()))
    is_prepared = False
    try:
        call.prepare()
        is_prepared = True
        world.ledger.open.append(OpenTransaction(call.id, life.name, call, [promise], "COMMIT"))
        call.commit()
    except BaseException as error:
        answer = refusal(error, is_prepared=is_prepared)
        # Before its halves are there, an end is that of an earlier try, with its messages.
        promise.answer = answer if is_prepared else Answer.EITHER
        raise
    promise.answer = Answer.SHOWN


# --- services and readers -------------------------------------------------------------------------


def publish(world: World, life: Life, _: Step) -> None:
    world.publisher(life.name).run_once()


def deliver(world: World, life: Life, _: Step) -> None:
    world.delay(life.name).run_once()


def check(world: World, life: Life, _: Step) -> None:
    world.check(life.name).run_once()


def maintain(world: World, life: Life, _: Step) -> None:
    failed = world.maintenance(life.name).run_once().failed
    if failed:
        world.ledger.errors[life.name] = str(dict(failed))


def consume(world: World, life: Life, _: Step) -> None:
    consumer = world.consumer(life.name)
    handled = world.ledger.handled.setdefault(consumer.consumer_group, Counter())
    is_booked = life.name.startswith("inbox")

    def handle(message: ReceivedMessage) -> None:
        world.simulation.passed("handler")
        body = message.body.decode()
        failure = (consumer.consumer_group, body)
        if body.startswith("p") and failure not in world.ledger.failed_once:
            world.ledger.failed_once.add(failure)
            raise _HandlerError
        if is_booked:
            world.inbox().apply([message], _effects)
        handled[body] += 1

    consumer.run_once(handle)


class _HandlerError(Exception):
    """A handler fails on a message, once."""


def _effects(messages: Any) -> pa.Table:
    return pa.table({"body": [message.body.decode() for message in messages]})


def rebuild(world: World, life: Life, step: Step) -> None:
    topics = Topics(world.store(), clock=world.clock(life.name))
    topic = TOPICS[step.what % 2]
    if topic in world.store().topics():
        topics.rebuild(topic, apply=True)


# --- time, disk, copies ---------------------------------------------------------------------------


def wait(world: World, _: Life, step: Step) -> None:
    world.simulation.sleep(PAUSES_S[step.what % len(PAUSES_S)])


def clock(world: World, life: Life, step: Step) -> None:
    jumps = (0, *CLOCK_JUMPS_S)
    world.clock(life.name).wrong_s = jumps[step.what % len(jumps)]


def restart(world: World, life: Life, _: Step) -> None:
    world.end(life.name)


def no_space(world: World, _: Life, step: Step) -> None:
    world.simulation.disk[TABLES[step.what % len(TABLES)]] = NO_SPACE


def io_error(world: World, _: Life, step: Step) -> None:
    world.simulation.disk[TABLES[step.what % len(TABLES)]] = IO_ERROR


def heal(world: World, _: Life, __: Step) -> None:
    world.simulation.disk.clear()


def copy(world: World, _: Life, step: Step) -> None:
    """As a copy of a running store is taken: some tables, some work of others, the rest."""
    folder = world.simulation.root / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    cut = 1 + step.what % len(COPIED_IN_TURN)
    for name in COPIED_IN_TURN[:cut]:
        _copied(world.location, folder, name)
    for other in step.meanwhile:
        world.play(other)
    for name in COPIED_IN_TURN[cut:]:
        _copied(world.location, folder, name)
    world.copy = folder


def restore(world: World, _: Life, __: Step) -> None:
    """All processes end, the copy takes the place of the store, new processes begin."""
    if world.copy is None or not world.is_quiet:
        return
    world.end_all()
    shutil.rmtree(world.location)
    shutil.copytree(world.copy, world.location)
    world.ledger.damage(is_older=True)


def restore_table(world: World, _: Life, step: Step) -> None:
    if world.copy is None or not world.is_quiet:
        return
    there = [name for name in RESTORED_ALONE if (world.copy / name).exists()]
    name = there[step.what % len(there)]
    world.end_all()
    shutil.rmtree(world.location / name)
    shutil.copytree(world.copy / name, world.location / name)
    world.ledger.damage(is_older=True)


def empty(world: World, _: Life, step: Step) -> None:
    for path in _damaged_file(world, step):
        path.write_bytes(b"")


def remove(world: World, _: Life, step: Step) -> None:
    for path in _damaged_file(world, step):
        path.unlink()


def _damaged_file(world: World, step: Step) -> list[Path]:
    """A data file that is there; none where its table has none."""
    there = [name for name in DAMAGED if (world.location / name).exists()]
    folder = world.location / there[step.what % len(there)]
    files = [path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts]
    files.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not files:
        return []
    world.ledger.damage(is_older=False)
    return [files[step.what // len(there) % len(files)]]


def _copied(source: Path, folder: Path, name: str) -> None:
    if (source / name).exists():
        shutil.copytree(source / name, folder / name)


DEEDS: dict[str, Deed] = {
    "send": send, "delayed": delayed, "prepare": prepare, "commit": commit, "rollback": rollback,
    "try": try_again, "publish": publish, "deliver": deliver, "check": check,
    "maintain": maintain, "consume": consume, "rebuild": rebuild, "wait": wait, "clock": clock,
    "restart": restart, "no space": no_space, "io error": io_error, "heal": heal, "copy": copy,
    "restore": restore, "restore table": restore_table, "empty": empty, "remove": remove,
}  # fmt: skip
