"""What a step does: one call of one process, and what its caller was told."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from tests.endurance.generator.ledger import Answer, OpenTransaction, answered, refusal
from tests.endurance.generator.plan import Step
from tests.endurance.generator.simulation import BEGIN_S, IO_ERROR, NO_SPACE, Life
from tests.endurance.generator.world import (
    KEYS,
    OTHER_SETTINGS,
    TOPICS,
    Deed,
    World,
    readable_files,
)
from tests.kit.fault_vocabulary import CLOCK_JUMPS_S, TABLES
from txmq.consumer.group_rules import TopicQueue
from txmq.errors import InvalidReceiptError, MessagesExpiredError
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import LocalTransactionState, Message
from txmq.message.received import ReceivedMessage
from txmq.store.known import begin_of, maintenance_value

PAUSES_S = (1.0, 10.0, 20.0, 40.0, 700.0, 4_000.0, 90_000.0, 4 * 86_400.0)
DELAYS_S = (5, 15, 60, 1_800)
ANSWERS = ("COMMIT", "ROLLBACK", "UNKNOWN")
# Of the queues of all topics of a group.
SEEKS_MAX = 8
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
    message = Message(topic, body.encode(), keys=body, delay_s=delay_s)
    try:
        result = world.producer(life.name).send(message)
    except BaseException as error:
        # A send that got no answer may have landed.
        promise.answer = refusal(error, is_prepared=True)
        raise
    promise.answer, promise.message_id = Answer.SHOWN, result.message_id


def prepare(world: World, life: Life, step: Step) -> None:
    topics = TOPICS if step.what % 3 == 0 else (TOPICS[step.what % 2],)
    producer = world.producer(life.name)
    call = producer.begin_transaction()
    promises = [world.ledger.promise(t, world.ledger.new_body("t"), life.name) for t in topics]
    says = ANSWERS[step.what // 3 % len(ANSWERS)]
    for promise in promises:
        call.send(Message(promise.topic, promise.body.encode(), keys=promise.body))
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
    waiting = world.ledger.waiting()
    waiting = [one for one in waiting if one.who == life.name] or waiting
    if waiting:
        transaction = waiting[step.what % len(waiting)]
        if transaction.is_ended and transaction.maker is world.producer(life.name):
            # No promise of the store as it is now.
            return
        with told(transaction, kind, answer):
            _claim(world, life, transaction, kind)


@contextmanager
def told(transaction: OpenTransaction, kind: ClaimKind, answer: Answer) -> Iterator[None]:
    """Note what the caller of an end is told; the answer where the block returns."""
    try:
        yield
    except BaseException as error:
        answered(transaction.promises, _refused_end(error, kind))
        raise
    if not (transaction.may_have_ended and answer is Answer.HIDDEN):
        answered(transaction.promises, answer)


def _claim(world: World, life: Life, transaction: OpenTransaction, kind: ClaimKind) -> None:
    """By the call that prepared it, while its process lives; else by its id alone."""
    producer = world.producer(life.name)
    if transaction.maker is producer:
        transaction.call.commit() if kind is ClaimKind.COMMIT else transaction.call.rollback()
        transaction.is_ended = True
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


def pay(world: World, life: Life, step: Step) -> None:
    """A local transaction in a table of the user, with its marker; half of them are committed."""
    promise = world.ledger.promise(TOPICS[step.what % 2], world.ledger.new_body("b"), life.name)
    call = world.producer(life.name).begin_transaction()
    call.send(Message(promise.topic, promise.body.encode(), keys=promise.body))
    call.prepare()
    promise.transaction_id = call.id
    world.simulation.passed("prepared")
    with call.delta_rs(str(world.payments)) as (table, properties):
        rows = pa.table({"body": [promise.body]})
        write_deltalake(table, rows, mode="append", commit_properties=properties)
    world.simulation.passed("paid")
    if step.what // 2 % 2:
        try:
            call.commit()
        except BaseException as error:
            promise.answer = refusal(error, is_prepared=True)
            raise
        promise.answer = Answer.SHOWN


def renew(world: World, _: Life, step: Step) -> None:
    """The threads of producers renew what these work on; odd numbers: also of those that wait."""
    for producer in world.producers(are_all=bool(step.what % 2)):
        renewing = producer._renewing
        renewing.run_once()
        for transaction in world.ledger.open:
            if transaction.id in (renewing._listed or ()):
                transaction.renewed_s = renewing._listed_s


# --- services and readers -------------------------------------------------------------------------


def publish(world: World, life: Life, _: Step) -> None:
    world.publisher(life.name).run_once()


def deliver(world: World, life: Life, _: Step) -> None:
    world.delay(life.name).run_once()


def check(world: World, life: Life, _: Step) -> None:
    world.rounds_s[life.name] = world.simulation.now_s
    world.check(life.name).run_once()


def maintain(world: World, life: Life, _: Step) -> None:
    for topic, rows in world.ledger.shown_earlier.items():
        rows.update(rows_of(world, topic))
    failed = world.maintenance(life.name).run_once().failed
    if failed:
        world.ledger.errors[life.name] = str(dict(failed))


def rows_of(world: World, topic: str) -> set[tuple[str, int, int]]:
    """Body, queue and offset of the rows of a topic."""
    rows: set[tuple[str, int, int]] = set()
    for path in readable_files(world.location / "topics" / topic):
        found = pq.read_table(path, columns=["body", "queue_id", "queue_offset"]).to_pylist()
        rows |= {
            ((row["body"] or b"").decode(errors="replace"), row["queue_id"], row["queue_offset"])
            for row in found
        }
    return rows


def consume(world: World, life: Life, step: Step) -> None:
    if life.name.startswith("ordered"):
        consume_in_order(world, life, step)
        return
    consumer = world.consumer(life.name)
    handled = world.ledger.handled.setdefault(consumer.consumer_group, Counter())
    is_booked = life.name.startswith("inbox")

    def handle(message: ReceivedMessage) -> None:
        _note_beside_retry(world, consumer.consumer_group, message)
        world.simulation.passed("handler")
        with _noted(world, consumer.consumer_group, message):
            if _fails(world, consumer.consumer_group, message):
                raise _HandlerError
            if is_booked:
                world.inbox().apply([message], _effects)
        handled[message.body.decode()] += 1

    _behind_what_is_gone(world, consumer, lambda: consumer.run_once(handle))


def consume_in_order(world: World, life: Life, _: Step) -> None:
    """A handler that notes each of its calls, of a group that keeps order."""
    consumer, ledger = world.consumer(life.name), world.ledger
    handled = ledger.handled.setdefault(consumer.consumer_group, Counter())

    def handle(message: ReceivedMessage) -> None:
        place = message.topic, message.queue_id, message.queue_offset
        ledger.calls.append((*place, False))
        world.simulation.passed("handler")
        if _fails(world, consumer.consumer_group, message):
            raise _HandlerError
        ledger.calls.append((*place, True))
        handled[_text(message)] += 1

    _behind_what_is_gone(world, consumer, lambda: consumer.run_once(handle))


def receive(world: World, life: Life, _: Step) -> None:
    """A member receives, acknowledges what succeeds, and knows then what is durable."""
    consumer, ledger = world.consumer(life.name), world.ledger
    handled = ledger.handled.setdefault(consumer.consumer_group, Counter())
    messages: list[ReceivedMessage] = _behind_what_is_gone(
        world, consumer, lambda: consumer.receive(timeout_s=0.0)
    )
    again = {*map(_text, messages)} & ledger.acknowledged
    ledger.came_again += [(consumer.consumer_group, body) for body in sorted(again)]
    world.simulation.passed("received")
    acknowledged: list[ReceivedMessage] = []
    for message in messages:
        if _fails(world, consumer.consumer_group, message):
            continue
        with suppress(InvalidReceiptError):
            consumer.ack(message)
            acknowledged.append(message)
    # The commit may be made, and nobody there to hear of it.
    handled.update(map(_text, acknowledged))
    world.simulation.passed("packed")
    lost = consumer.commit()
    durable = [m for m in acknowledged if TopicQueue(m.topic, m.queue_id) not in lost]
    ledger.acknowledged |= {*map(_text, durable)} - {""}
    world.simulation.passed("acknowledged")


def work(world: World, life: Life, _: Step) -> None:
    """What a member does by hand: it polls, sends back, applies the rest together, and commits."""
    consumer = world.consumer(life.name)
    handled = world.ledger.handled.setdefault(consumer.consumer_group, Counter())
    messages: list[ReceivedMessage] = _behind_what_is_gone(
        world, consumer, lambda: consumer.poll(timeout_s=0.0)
    )
    for message in messages:
        _note_beside_retry(world, consumer.consumer_group, message)
    world.simulation.passed("polled")
    good: list[ReceivedMessage] = []
    for message in messages:
        if _fails(world, consumer.consumer_group, message):
            _note_failure(world, consumer.consumer_group, message)
            consumer.send_back(message, reason="it fails once")
            world.ledger.sent_back.add((consumer.consumer_group, message.body.decode()))
        else:
            good.append(message)
    world.simulation.passed("sent back")
    if life.name.startswith("inbox"):
        world.inbox().apply(good, _effects)
    world.simulation.passed("applied")
    consumer.commit()
    handled.update(message.body.decode() for message in good)


def _behind_what_is_gone(world: World, consumer: Any, read: Callable[[], Any]) -> Any:
    """Read; go on behind what operators let go, as the error says."""
    for _ in range(SEEKS_MAX):
        try:
            return read()
        except MessagesExpiredError as error:
            if error.lost or error.topic not in world.ledger.emptied:
                raise
            consumer.seek(error.topic, error.queue_id, error.first_offset)
    return read()


@contextmanager
def _noted(world: World, group: str, message: ReceivedMessage) -> Iterator[None]:
    """Note that a handler fails, so that its message is sent back."""
    try:
        yield
    except Exception:
        _note_failure(world, group, message)
        raise


def _note_failure(world: World, group: str, message: ReceivedMessage) -> None:
    world.ledger.failed[group, message.body.decode()].append(world.simulation.now_s)


def _note_beside_retry(world: World, group: str, message: ReceivedMessage) -> None:
    """What was sent back before a message is handed out must come as its retry alone."""
    ledger, body = world.ledger, message.body.decode()
    # What was sent back is known again for a third of the reserved time (decision 0021).
    known_s = world.config.file_reserved_time_h * 3600 / 3
    sent_s = max(ledger.failed[group, body], default=0.0)
    is_known = (group, body) in ledger.sent_back and world.simulation.now_s - sent_s < known_s
    if is_known and not message.reconsume_times:
        ledger.beside_retry.append((group, body))


def _text(message: ReceivedMessage) -> str:
    """The body, which a row of another program may lack."""
    return (message.body or b"").decode(errors="replace")


def _fails(world: World, group: str, message: ReceivedMessage) -> bool:
    """Whether a message fails, once, and not at the end."""
    ledger, body = world.ledger, _text(message)
    is_first = (
        body.startswith("p") and not ledger.read_s and (group, body) not in ledger.failed_once
    )
    if is_first:
        ledger.failed_once.add((group, body))
    return is_first


class _HandlerError(Exception):
    """A handler fails on a message, once."""


def _effects(messages: Any) -> pa.Table:
    return pa.table({"body": [message.body.decode() for message in messages]})


# --- time, disk, copies ---------------------------------------------------------------------------


def wait(world: World, _: Life, step: Step) -> None:
    world.simulation.sleep(PAUSES_S[step.what % len(PAUSES_S)])


def clock(world: World, life: Life, step: Step) -> None:
    jumps = (0, *CLOCK_JUMPS_S)
    wrong_s = jumps[step.what % len(jumps)]
    world.clock(life.name).wrong_s = wrong_s
    ahead_s, role = world.ledger.ahead_s, life.name.rstrip("01")
    ahead_s[role] = max(ahead_s[role], wrong_s)


def restart(world: World, life: Life, _: Step) -> None:
    world.end(life.name)


def configure(world: World, life: Life, step: Step) -> None:
    """Restart a process with other keys and settings."""
    world.keys[life.name] = KEYS[step.what % len(KEYS)]
    other = step.what // len(KEYS)
    world.other_settings[life.name] = OTHER_SETTINGS[other % len(OTHER_SETTINGS)]
    world.end(life.name)


def stop_all(world: World, _: Life, __: Step) -> None:
    """All processes end, and their callers with them."""
    world.end_all()
    world.ledger.open.clear()


def no_space(world: World, _: Life, step: Step) -> None:
    world.simulation.disk[TABLES[step.what % len(TABLES)]] = NO_SPACE


def io_error(world: World, _: Life, step: Step) -> None:
    world.simulation.disk[TABLES[step.what % len(TABLES)]] = IO_ERROR


def lose_answer(world: World, _: Life, step: Step) -> None:
    world.simulation.losing.add(TABLES[step.what % len(TABLES)])


def heal(world: World, _: Life, __: Step) -> None:
    world.simulation.disk.clear()
    world.simulation.losing.clear()


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
    """The copy takes the place of the store, under all who live."""
    if world.copy is None:
        return
    shutil.rmtree(world.location)
    shutil.copytree(world.copy, world.location)
    for transaction in world.ledger.open:
        transaction.renewed_s = None
    world.ledger.go_back()


def restore_table(world: World, _: Life, step: Step) -> None:
    """The copy of one table takes its place."""
    if world.copy is None:
        return
    there = [name for name in RESTORED_ALONE if (world.copy / name).exists()]
    name = there[step.what % len(there)]
    shutil.rmtree(world.location / name, ignore_errors=True)
    shutil.copytree(world.copy / name, world.location / name)
    world.ledger.go_back()
    if name == "op":
        for one in world.ledger.open:
            one.may_have_ended = True


def empty(world: World, _: Life, step: Step) -> None:
    for path in _damaged_file(world, step):
        path.write_bytes(b"")


def remove(world: World, _: Life, step: Step) -> None:
    for path in _damaged_file(world, step):
        world.removed[path] = path.read_bytes()
        path.unlink()


def put_back(world: World, _: Life, __: Step) -> None:
    """Files that were removed are there again."""
    for path, content in world.removed.items():
        if path.parent.exists():
            path.write_bytes(content)
            world.ledger.outlived |= _outlived(world, path)
    world.removed.clear()


def _outlived(world: World, path: Path) -> set[str]:
    """The bodies in a file of a topic whose neighbours retention has taken meanwhile."""
    folder, topic, *_ = path.relative_to(world.location).parts
    if folder != "topics":
        return set()
    begin = begin_of(maintenance_value(world.store()), topic)
    rows = pq.read_table(path, columns=["body", "op_version"]).to_pylist()
    return {row["body"].decode() for row in rows if row["body"] and row["op_version"] <= begin}


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
    "try": try_again, "pay": pay, "publish": publish, "deliver": deliver, "check": check,
    "maintain": maintain, "consume": consume, "receive": receive, "work": work,
    "wait": wait, "clock": clock,
    "renew": renew, "restart": restart, "configure": configure, "stop all": stop_all,
    "no space": no_space,
    "io error": io_error, "lose answer": lose_answer, "heal": heal, "copy": copy,
    "restore": restore, "restore table": restore_table, "empty": empty, "remove": remove,
    "put back": put_back,
}  # fmt: skip
