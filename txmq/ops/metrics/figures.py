"""What is shown of a store and of a broker, as values. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from txmq.consumer.lag import QueueLag
from txmq.ground.histogram import NO_DURATIONS, Histogram
from txmq.message.names import shown_name
from txmq.ops.admin.status import Status
from txmq.ops.broker_log import BrokerCounts

# Of more topics or groups than this the smallest are shown as one, so that no store floods who
# gathers its figures.
LABELS_MAX = 2_000
OTHERS = "*"


class FigureKind(enum.StrEnum):
    """As Prometheus tells kinds apart."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        name: with its unit; of a counter without `_total`, which each format adds by itself.
        kind: whether it goes up and down, only up, or counts durations.
        description: one sentence.
        labels: the names of the labels.
        samples: a value for each combination of label values; the combination () where there are
            no labels.
    """

    name: str
    kind: FigureKind
    description: str
    labels: tuple[str, ...]
    samples: Mapping[tuple[str, ...], float | Histogram]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Durations that one broker has measured since its start."""

    finish_message: Histogram = NO_DURATIONS
    publish: Histogram = NO_DURATIONS
    delay: Histogram = NO_DURATIONS


def store_figures(
    status: Status, lags: Sequence[QueueLag], unreadable_groups: int = 0
) -> list[Figure]:
    """Return what the tables say: the same for each broker of a store."""
    return [
        *_of_transactions(status),
        *_of_messages(status),
        *_of_progress(status),
        *_of_consumers(lags, unreadable_groups),
        *_of_tables(status),
    ]


def broker_figures(
    counts: BrokerCounts, latencies: Latencies, services: Mapping[str, bool]
) -> list[Figure]:
    """Return what one broker has done since its start; those of all brokers add up."""
    answers = {
        "COMMIT": counts.committed, "ROLLBACK": counts.rolled_back, "UNKNOWN": counts.unknown,
    }  # fmt: skip
    return [
        _by("txmq_service_up", "1 while this service of the broker runs.", "service",
            {name: float(is_up) for name, is_up in services.items()}),
        _counter("txmq_settled_claims", "Claims that this broker settled.", counts.settled),
        _counter("txmq_published_messages", "Messages it appended to topics.", counts.published),
        _counter("txmq_delivered_messages", "Delayed messages it delivered.", counts.delivered),
        _counter("txmq_checks", "Questions it asked listeners.", counts.asked),
        _by("txmq_check_answers", "What listeners answered.", "answer", answers,
            FigureKind.COUNTER),
        _counter("txmq_discards", "Transactions that it asked about too often.", counts.discarded),
        _counter("txmq_refused_commits", "Commits that another broker was faster with.",
                 counts.refused),
        _counter("txmq_merged_files", "Small files that it merged.", counts.files_merged),
        _counter("txmq_cleaned_commits", "Old commits that it removed.", counts.commits_cleaned),
        _counter("txmq_maintenance_failures", "Steps of maintenance that failed.",
                 counts.failures),
        _histogram("txmq_finish_message_latency_seconds",
                   "From a half message to its COMMIT or ROLLBACK.", latencies.finish_message),
        _histogram("txmq_publish_latency_seconds",
                   "From a COMMIT to its visible messages.", latencies.publish),
        _histogram("txmq_delay_message_latency_seconds",
                   "From the time a message was due to its DELIVER.", latencies.delay),
    ]  # fmt: skip


# --- of a store -----------------------------------------------------------------------------------


def _of_transactions(status: Status) -> Iterable[Figure]:
    older = {str(bound_s): float(count) for bound_s, count in status.older_than.items()}
    return (
        _gauge("txmq_open_transactions", "Transactions without an end.", status.open),
        _by("txmq_open_transactions_older_than", "Open for longer than this.", "seconds", older),
        _gauge("txmq_oldest_open_half_age_seconds", "Age of the oldest open transaction.",
               status.oldest_open_half_age_s or 0.0),
        _by("txmq_half_messages", "Messages of open transactions.", "topic",
            _shown(status.half_messages)),
        _by("txmq_unasked_transactions", "Open, and could not be asked in the last check.",
            "reason", status.unasked),
        _counter("txmq_commits", "COMMITs that took effect, ever.", status.committed),
        _counter("txmq_rollbacks", "ROLLBACKs that took effect, ever.", status.rolled_back),
        _counter("txmq_expirations", "Transactions that expired, ever.", status.expired),
        _gauge("txmq_discarded_transactions", "Asked too often; an operator decides.",
               status.discarded),
        _gauge("txmq_incomplete_transactions", "Committed, but messages are missing.",
               status.incomplete),
        _gauge("txmq_set_aside_transactions", "They wait for a file or a key.",
               len(status.set_aside)),
    )  # fmt: skip


def _of_messages(status: Status) -> Iterable[Figure]:
    return (
        _by("txmq_topic_messages", "Visible messages.", "topic", _shown(status.messages)),
        _gauge("txmq_scheduled_messages", "Committed messages that wait for their time.",
               status.scheduled),
        _gauge("txmq_delay_lag_seconds", "How long a delayed message is overdue.",
               status.delay_lag_s),
        _gauge("txmq_dead_letter_messages", "Messages of discarded transactions.",
               status.dead_letters),
        _by("txmq_check_members", "Live producers that answer checks.", "producer_group",
            _shown(status.members)),
    )  # fmt: skip


def _of_progress(status: Status) -> Iterable[Figure]:
    parked = {
        shown_name(topic.topic): (status.at - topic.since).total_seconds()
        for topic in status.parked
    }
    return (
        _gauge("txmq_settle_lag_commits", "Commits of op that are not settled.",
               status.settled.op_versions),
        _gauge("txmq_settle_lag_seconds", "How long the oldest of them waits.",
               status.settled.seconds),
        _gauge("txmq_publish_lag_commits", "Commits of op whose messages are not visible.",
               status.published.op_versions),
        _gauge("txmq_publish_lag_seconds", "How long the oldest of them waits.",
               status.published.seconds),
        _by("txmq_parked_topic_age_seconds", "How long a topic could not be written.", "topic",
            parked),
    )  # fmt: skip


def _of_consumers(lags: Sequence[QueueLag], unreadable: int) -> Iterable[Figure]:
    messages: dict[tuple[str, ...], float] = {}
    ownerless: dict[tuple[str, ...], float] = {}
    for queue in lags:
        key = (shown_name(queue.group), shown_name(queue.topic))
        messages[key] = messages.get(key, 0) + queue.lag
        ownerless[key] = ownerless.get(key, 0) + (queue.owner is None)
    labels = ("consumer_group", "topic")
    return (
        Figure("txmq_consumer_lag_messages", FigureKind.GAUGE, "Messages not consumed yet.",
               labels, capped(messages)),
        Figure("txmq_consumer_ownerless_queues", FigureKind.GAUGE,
               "Queues that no living member reads.", labels, capped(ownerless)),
        _gauge("txmq_unreadable_consumer_groups", "Groups whose state cannot be read.",
               unreadable),
    )  # fmt: skip


def _of_tables(status: Status) -> Iterable[Figure]:
    files = {name: float(size.files) for name, size in status.tables.items()}
    sizes = {name: float(size.size_bytes) for name, size in status.tables.items()}
    return (
        _by("txmq_table_files", "Live files, which maintenance merges.", "table", files),
        _by("txmq_table_size_bytes", "Bytes of the live files.", "table", sizes),
        _gauge("txmq_unreadable_files", "Files of half that cannot be read.",
               len(status.unreadable)),
    )  # fmt: skip


# --- values ---------------------------------------------------------------------------------------


def capped(samples: Mapping[tuple[str, ...], float]) -> Mapping[tuple[str, ...], float]:
    """Keep the largest LABELS_MAX samples, and the sum of all others under OTHERS."""
    if len(samples) <= LABELS_MAX:
        return samples
    ordered = sorted(samples, key=lambda key: (-samples[key], key))
    largest = {key: samples[key] for key in ordered[: LABELS_MAX - 1]}
    others = sum(samples[key] for key in ordered[LABELS_MAX - 1 :])
    return largest | {(OTHERS,) * len(ordered[0]): others}


def _shown(counts: Mapping[str, int]) -> dict[str, int]:
    return {shown_name(name): count for name, count in counts.items()}


def _gauge(name: str, description: str, value: float) -> Figure:
    return Figure(name, FigureKind.GAUGE, description, (), {(): float(value)})


def _counter(name: str, description: str, value: float) -> Figure:
    return Figure(name, FigureKind.COUNTER, description, (), {(): float(value)})


def _histogram(name: str, description: str, value: Histogram) -> Figure:
    return Figure(name, FigureKind.HISTOGRAM, description, (), {(): value})


def _by(
    name: str,
    description: str,
    label: str,
    values: Mapping[str, float],
    kind: FigureKind = FigureKind.GAUGE,
) -> Figure:
    samples = capped({(key,): float(value) for key, value in values.items()})
    return Figure(name, kind, description, (label,), samples)
