"""Consumers without Spark: latency, a backlog, commits, and what ten groups cost a publisher."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from bench.messages import GROUP, QUEUES, TOPIC, one_message_transactions, random_body
from bench.outcome import Bar, Outcome, percentile
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.consumer.lag import lag_of_group
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

GROUPS = 10
ROUND_MESSAGES = 200
WARM_UP_ROUNDS = 5
BLOCK_ROUNDS = 5
PAUSE_S = 0.05
IDLE_S = 3.0
LOOK_S = 0.001
WAIT_S = 60.0
POLLS = (32, 1_000)
SPAWN = get_context("spawn")


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """No Spark anywhere; consumers are in processes of their own."""
    return [
        _latency(sizes, folder),
        *(_backlog(sizes, folder, max_messages) for max_messages in POLLS),
        *_steady(sizes, folder),
        _publishing(sizes, folder),
    ]


# --- from visible to handed out -------------------------------------------------------------------


def _latency(sizes: Sizes, folder: Path) -> Outcome:
    samples = [_latencies_ms(sizes, folder) for _ in range(sizes.rounds)]
    facts = {
        "p99_ms": round(percentile(list(chain(*samples)), 0.99), 1),
        "samples": len(samples[0]),
    }
    return Outcome(
        "consumers", "visible to handed out, p50", "ms", [median(one) for one in samples],
        bar=Bar(50.0, at_most=True), facts=facts,
    )  # fmt: skip


def _latencies_ms(sizes: Sizes, folder: Path) -> list[float]:
    """From the time of the topic's commit file to the return of poll(), in another process."""
    with _sending(folder) as (store, send), _other_process(_poller, store.location) as (told, _):
        log = Path(store.location) / "topics" / TOPIC / "_delta_log"
        found = []
        for number in range(sizes.single_messages + WARM_UP_ROUNDS):
            time.sleep(PAUSE_S)
            send(1)
            visible_s = max(path.stat().st_mtime_ns for path in log.glob("*.json")) / 1e9
            handed_s = told.get(timeout=WAIT_S)
            if number >= WARM_UP_ROUNDS:
                found.append((handed_s - visible_s) * 1000)
        return found


def _poller(location: str, told: Any, stop: Any) -> None:
    with PullConsumer(
        Store.open(location), consumer_group=GROUP, topics=TOPIC,
        from_where=ConsumeFromWhere.LAST_OFFSET,
    ) as consumer:  # fmt: skip
        told.put("ready")
        while not stop.is_set():
            if consumer.poll(timeout_s=0.2):
                told.put(time.time())


# --- a backlog ------------------------------------------------------------------------------------


def _backlog(sizes: Sizes, folder: Path, max_messages: int) -> Outcome:
    store = store_with_backlog(sizes, folder)
    rates, commits = [], 0
    for number in range(sizes.rounds + 1):
        group = f"backlog-{max_messages}-{number}"
        with _other_process(_drainer, store.location, group, max_messages, sizes.consumed) as (
            told,
            _,
        ):
            rate, commits = told.get(timeout=WAIT_S * 10)
            rates.append(rate)
    facts = {
        "messages": sizes.consumed,
        "commits_per_1000_messages": round(1000 * commits / sizes.consumed, 3),
        "body_bytes": sizes.body_bytes,
    }
    bar = Bar(100_000.0, at_most=False) if max_messages == POLLS[-1] else None
    # The first one brings the files into the cache.
    measure = f"backlog, poll({max_messages:,})"
    return Outcome("consumers", measure, "messages/s", rates[1:], bar=bar, facts=facts)


def store_with_backlog(sizes: Sizes, folder: Path) -> Store:
    """A store whose topic has `sizes.consumed` messages."""
    store = Store.create(fresh_folder(folder, "backlog"))
    half, op = store.tables.half_log().table, store.tables.op_log().table
    publisher = Publisher(store)
    for number in range(1, sizes.consumed // sizes.commit_rows + 1):
        halves, ends = one_message_transactions(sizes.commit_rows, sizes.body_bytes)
        half.writer.append(halves, app_id="bench", number=number)
        op.writer.append(ends, app_id="bench", number=number)
        publisher.run_once()
    return store


def _drainer(  # noqa: PLR0913, PLR0917 - a process has no keywords
    location: str, group: str, max_messages: int, count: int, told: Any, stop: Any
) -> None:
    """Every body is looked at; a commit a second."""
    store = Store.open(location)
    with PullConsumer(store, consumer_group=group, topics=TOPIC) as consumer:
        told.put("ready")
        table = store.tables.table_at(f"state/group_{group}")
        before = table.version
        start_s = committed_s = time.perf_counter()
        done = size_bytes = 0
        while done < count and not stop.is_set():
            messages = consumer.poll(max_messages)
            for message in messages:
                size_bytes += len(message.body)
            done += len(messages)
            if time.perf_counter() - committed_s > 1.0:
                consumer.commit()
                committed_s = time.perf_counter()
        consumer.commit()
        rate = done / (time.perf_counter() - start_s)
        told.put((rate, table.refresh().version - before))


# --- a steady stream ------------------------------------------------------------------------------


def _steady(sizes: Sizes, folder: Path) -> list[Outcome]:
    commits, idle = [], []
    for _ in range(sizes.rounds):
        one = _steady_round(sizes, folder)
        commits.append(one[0])
        idle.append(one[1])
    measure = f"steady stream of {ROUND_MESSAGES:,} messages a commit"
    return [
        Outcome("consumers", measure, "commits/1,000 messages", commits),
        Outcome("consumers", "one idle consumer", "% of a core", idle),
    ]


def _steady_round(sizes: Sizes, folder: Path) -> tuple[float, float]:
    with _sending(folder) as (store, send):
        with _other_process(_handlers, store.location, 1) as (told, _):
            table = store.tables.table_at(f"state/group_{GROUP}-0")
            before = table.version
            for _ in range(sizes.published_rounds):
                send(ROUND_MESSAGES)
            # Offsets are kept every few seconds, so the last ones count too.
            deadline_s = time.perf_counter() + WAIT_S
            while any(queue.lag for queue in lag_of_group(store, f"{GROUP}-0")):
                if time.perf_counter() > deadline_s:
                    raise TimeoutError("the consumer did not come to the end of its queues")
                time.sleep(0.1)
            made = table.refresh().version - before
            told.put("idle")
            time.sleep(0.2)
            idle = _idle_share(told)
        return 1000 * made / (sizes.published_rounds * ROUND_MESSAGES), 100 * idle


def _idle_share(told: Any) -> float:
    while not isinstance(share := told.get(timeout=WAIT_S), float):
        told.put(share)
        time.sleep(0.1)
    return share


def _handlers(location: str, count: int, told: Any, stop: Any) -> None:
    """As many groups, each with a handler of its own thread; then what one costs while idle."""
    store = Store.open(location)
    consumers = [
        PullConsumer(store, consumer_group=f"{GROUP}-{number}", topics=TOPIC)
        for number in range(count)
    ]
    handles = [consumer.start(_looked_at) for consumer in consumers]
    told.put("ready")
    while not stop.wait(0.1):
        if count == 1 and not told.empty() and told.get() == "idle":
            time.sleep(1.0)
            before_s, start_s = time.process_time(), time.perf_counter()
            time.sleep(IDLE_S)
            told.put((time.process_time() - before_s) / (time.perf_counter() - start_s))
            stop.wait(WAIT_S)
    for handle, consumer in zip(handles, consumers, strict=True):
        handle.stop()
        consumer.close()


def _looked_at(message: ReceivedMessage) -> None:
    len(message.body)


# --- ten groups beside a publisher ----------------------------------------------------------------


def _publishing(sizes: Sizes, folder: Path) -> Outcome:
    samples = [_publishing_s(sizes, folder) for _ in range(sizes.rounds)]
    return Outcome(
        "consumers", f"publishing beside {GROUPS} groups / alone", "s a round",
        [beside for beside, _ in samples], [alone for _, alone in samples],
        Bar(1.05, at_most=True),
        facts={"messages_a_round": ROUND_MESSAGES, "rounds": sizes.published_rounds},
    )  # fmt: skip


def _publishing_s(sizes: Sizes, folder: Path) -> tuple[float, float]:
    """Seconds from send() to visible, with the groups running and with them stopped, in turns."""
    with (
        _sending(folder) as (store, send),
        _other_process(_handlers, store.location, GROUPS) as (_, pid),
    ):
        passed: dict[signal.Signals, list[float]] = {signal.SIGCONT: [], signal.SIGSTOP: []}
        for number in range(2 * sizes.published_rounds // BLOCK_ROUNDS):
            order = signal.SIGSTOP if number % 2 else signal.SIGCONT
            os.kill(pid, order)
            passed[order] += _block_s(send)
        os.kill(pid, signal.SIGCONT)
        return median(passed[signal.SIGCONT]), median(passed[signal.SIGSTOP])


def _block_s(send: Callable[[int], float]) -> list[float]:
    """What waited for the groups while they were stopped is theirs before the time counts."""
    found = []
    for _ in range(WARM_UP_ROUNDS + BLOCK_ROUNDS):
        found.append(send(ROUND_MESSAGES))
        time.sleep(PAUSE_S)
    return found[WARM_UP_ROUNDS:]


# --- shared ---------------------------------------------------------------------------------------


@contextmanager
def _sending(folder: Path) -> Iterator[tuple[Store, Callable[[int], float]]]:
    """A store with its publisher, and what sends messages and says how soon they were visible."""
    store = Store.create(fresh_folder(folder, "store"))
    log = Path(store.location) / "topics" / TOPIC / "_delta_log"
    service = Publisher(store).start()
    with TransactionProducer(store, producer_group=GROUP) as producer:

        def send(count: int) -> float:
            batch = [Message(TOPIC, random_body(1024)) for _ in range(count)]
            before = len(list(log.glob("*.json")))
            visible = log / f"{before or 1:020}.json"
            start_s = time.perf_counter()
            producer.send(batch)
            while not visible.exists():
                time.sleep(LOOK_S)
            return time.perf_counter() - start_s

        try:
            send(QUEUES)
            yield store, send
        finally:
            service.stop()


@contextmanager
def _other_process(work: Callable[..., None], *arguments: Any) -> Iterator[tuple[Any, int]]:
    """`work` in a process of its own; what it tells comes by a queue. Its number comes too."""
    told, stop = SPAWN.Queue(), SPAWN.Event()
    process = SPAWN.Process(target=work, args=(*arguments, told, stop))
    process.start()
    try:
        if told.get(timeout=WAIT_S) != "ready":
            raise RuntimeError(work.__name__)
        yield told, process.pid
    finally:
        stop.set()
        process.join(WAIT_S)
        if process.is_alive():
            process.kill()
