"""Settle: turn claims into facts.

The common case is one COMMIT or ROLLBACK, the first and only claim about a complete transaction.
Vectorised Arrow code handles it; all other claims go through `lifecycle.fold`. A property test
checks that both agree. A transaction whose halves cannot be read is not decided (decision 0027).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import UnreadableFile
from txmq.ground.clock import timestamp
from txmq.ground.columns import (
    Flags,
    Groups,
    Integers,
    equal_pairs,
    find_pairs,
    first_of_each,
    flags,
    in_order,
    integers,
    list_items,
    only,
)
from txmq.message.lifecycle import (
    DELIVERY_STATES,
    FINAL_STATES,
    PENDING,
    Claim,
    ClaimKind,
    DeliveryState,
    Fact,
    Halves,
    TransactionState,
    fold,
)
from txmq.publish.topic_writer import NOBODYS_FAULT, culprits
from txmq.store.half import HalfLog, grouped_summaries
from txmq.store.op import (
    CLAIMS,
    Judged,
    claims_of_table,
    is_after_unknown,
    is_of_first_life,
    unknown_keys,
)
from txmq.store.schemas import MICROSECONDS_UTC, SETTLED
from txmq.store.settled import ScheduleLog, SettledLog, readable_delayed_messages, settled_table
from txmq.store.store_clock import StoreClock

_PLAIN_ENDS = {
    ClaimKind.COMMIT.value: TransactionState.COMMITTED.value,
    ClaimKind.ROLLBACK.value: TransactionState.ROLLED_BACK.value,
}
_DELIVERY_KINDS = pa.array([kind.value for kind in DELIVERY_STATES])
_DELIVERED_STATES = pa.array([state.value for state in DELIVERY_STATES.values()])
_COMMIT_COLUMNS = ["transaction_id", "state", "op_version", "ordinal", "life"]
_FINAL = pa.array([state.value for state in FINAL_STATES])
NOT_FOUND = -1
# Returns when the store received these commits of the op log; nothing if a test rules the clock.
ReceivedMs = Callable[[Iterable[int]], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Settlement:
    """The facts of one range of claims, and how many claims had no effect.

    Attributes:
        undecided: the claims that wait, because their transaction cannot be decided now.
        problems: why, by transaction.
    """

    facts: pa.Table
    claims: int
    without_effect: int
    undecided: Judged
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The transactions that are set aside.

    Attributes:
        held: those whose claims are not folded, because earlier claims about them wait.
        given_up: those whose unreadable halves count as missing, each with its producer group;
            claims of unknown keys about them count for nothing.
        unknown: the claims of the range that are signed by unknown keys, as CLAIMS.
    """

    held: Collection[str] = ()
    given_up: Mapping[str, str] = field(default_factory=dict)
    unknown: pa.Table = field(default_factory=CLAIMS.empty_table)


NOBODY_WAITS = Waiting()


def _not_received(_: Iterable[int]) -> Mapping[int, int]:
    return {}


def settle(  # noqa: PLR0913, PLR0917 - the tables that decide
    claims: pa.Table,
    half: HalfLog,
    settled: SettledLog,
    now_ms: int,
    schedule: ScheduleLog | None = None,
    waiting: Waiting = NOBODY_WAITS,
    *,
    received_ms: ReceivedMs = _not_received,
) -> Settlement:
    """Decide which claims take effect.

    What comes after a claim of an unknown key waits with it, unless its transaction has a final end
    before.

    Args:
        claims: those of the whole range that count, as CLAIMS.
        half: pinned to a version that was read after the range was fixed.
        settled: pinned to the version that the facts will be appended to.
        now_ms: the settled_timestamp of the facts.
        schedule: holds delayed messages whose halves are gone.
        waiting: transactions that are set aside.
        received_ms: when the store received commits of the op log; pauses count from there.

    Returns: the facts, as SETTLED, in the order of the claims, and the claims that must wait.

    Reads: half, settled and, for DELIVER and RECALL, the schedule. Commits: 0.
    """
    # An UNKNOWN counts a check and changes no state.
    rows = only(claims, flags(pc.not_equal(claims["kind"], ClaimKind.UNKNOWN.value)))
    unknown = only(waiting.unknown, ~_is_about(waiting.unknown, waiting.given_up))
    is_held = _is_about(rows, waiting.held)
    is_delivery = flags(pc.is_in(rows["kind"], value_set=_DELIVERY_KINDS))
    active = only(rows, ~is_held & ~is_delivery & ~is_after_unknown(rows, unknown))
    facts, problems = _ends(active, half, settled, now_ms, waiting.given_up, received_ms)
    unknown = _without_late_ends(unknown, facts, settled)
    is_held |= _is_about(rows, problems) | is_after_unknown(rows, unknown)
    problems = {**unknown_keys(unknown), **problems}
    if is_delivery.any():
        deliveries = rows.filter(pa.array(is_delivery & ~is_held))
        logs = (half, schedule, settled)
        delivered, undelivered = settle_deliveries(
            deliveries, facts, logs, now_ms, waiting.given_up
        )
        is_held |= is_delivery & _is_about(rows, undelivered)
        facts, problems = pa.concat_tables([facts, delivered]), {**problems, **undelivered}
    ordered = in_order(facts, "op_version", "ordinal")
    undecided = Judged(rows.filter(pa.array(is_held)), unknown)
    without_effect = claims.num_rows - facts.num_rows - undecided.counted.num_rows
    return Settlement(ordered, claims.num_rows, without_effect, undecided, problems)


def _without_late_ends(unknown: pa.Table, facts: pa.Table, settled: SettledLog) -> pa.Table:
    """Return the claims of unknown keys, without ends of transactions that have a final one."""
    is_end = ~flags(pc.is_in(unknown["kind"], value_set=_DELIVERY_KINDS))
    if not is_end.any():
        return unknown
    earlier = settled.facts_of(pc.unique(unknown["transaction_id"])).select(_COMMIT_COLUMNS)
    known = pa.concat_tables([earlier, facts.select(_COMMIT_COLUMNS)])
    final = known.filter(pc.is_in(known["state"], value_set=_FINAL))["transaction_id"]
    return only(unknown, ~(is_end & flags(pc.is_in(unknown["transaction_id"], value_set=final))))


def settle_all_others(
    decide: Callable[[Collection[str]], Settlement], claims: pa.Table, held: Collection[str]
) -> Settlement:
    """Settle claims; those about transactions that make settling fail must wait.

    Args:
        decide: settles the claims, without those about the transactions that it is given.
        claims: all claims of the range.
        held: transactions whose claims wait anyway.

    Raises: what is nobody's fault, and the error of `decide` if no transaction is to blame.
    """
    try:
        return decide(held)
    except NOBODYS_FAULT:
        raise
    except Exception:
        ids = pc.unique(claims["transaction_id"]).to_pylist()
        problems = culprits(ids, lambda tried: decide({*ids, *held} - {*tried}))
        if not problems:
            raise
        settlement = decide({*held, *problems})
        return replace(settlement, problems={**problems, **settlement.problems})


def are_ended(messages: pa.Table, settled: SettledLog, through: int | None = None) -> Flags:
    """Tell whether each message is DELIVERED or RECALLED.

    Args:
        messages: transaction_id and sequence.
        settled: a pinned log.
        through: ignore the facts of claims above this version of the op log.

    Reads: settled. Commits: 0.
    """
    ids = pc.unique(messages["transaction_id"])
    facts = settled.deliveries_of(ids)
    if through is not None:
        facts = facts.filter(pc.less_equal(facts["op_version"], through))
    return _are_among(_addresses(messages, ids), facts, ids)


def reach_deliveries(clock: StoreClock, facts: pa.Table) -> None:
    """Let the clock reach the times of deliveries: that of their service may be a little ahead."""
    is_delivered = pc.equal(facts["state"], DeliveryState.DELIVERED.value)
    newest_us = pc.max(facts.filter(is_delivered)["op_timestamp"].cast(pa.int64())).as_py()
    if newest_us is not None:
        clock.not_beyond(-(-newest_us // 1000))


def _is_about(claims: pa.Table, transaction_ids: Collection[str]) -> Flags:
    """Tell whether each claim is about one of these transactions."""
    if not transaction_ids:
        return np.zeros(claims.num_rows, dtype=bool)
    value_set = pa.array(list(transaction_ids), pa.string())
    return flags(pc.is_in(claims["transaction_id"], value_set=value_set))


def _ends(  # noqa: PLR0913, PLR0917 - as `settle`
    claims: pa.Table,
    half: HalfLog,
    settled: SettledLog,
    now_ms: int,
    given_up: Mapping[str, str],
    received_ms: ReceivedMs,
) -> tuple[pa.Table, dict[str, str]]:
    """Decide all claims but DELIVER and RECALL.

    Returns: the facts, and the problem of each transaction that must wait.
    """
    if claims.num_rows == 0:
        return SETTLED.columns.empty_table(), {}
    by_id = Groups.of(claims["transaction_id"])
    with_facts = pc.unique(settled.facts_of(by_id.keys)["transaction_id"])
    summaries, unreadable = half.readable_summaries(by_id.keys)
    group = complete_group(summaries, by_id.keys)
    problems = _undecidable(by_id.keys.filter(pc.is_null(group)), unreadable, given_up)
    is_plain = _is_plain(claims, by_id, group, with_facts)
    claims = _with_store_times(claims, summaries, now_ms, received_ms)
    plain = only(claims, is_plain)
    # A transaction that waits lacks halves, so that none of its claims is plain.
    others = only(claims, ~is_plain & ~_is_about(claims, problems))
    halves, incomparable = _halves(others, half, summaries, given_up)
    folded = _folded(others, halves, settled, now_ms)
    return pa.concat_tables([_plain_facts(plain, now_ms), folded]), {**problems, **incomparable}


def complete_group(summaries: pa.Table, ids: pa.Array) -> pa.Array:
    """Find the producer group of each transaction; null for one that is not complete.

    A transaction is complete if all its halves are there, once each, and of one producer group.
    """
    grouped = grouped_summaries(summaries, ids)
    is_complete = pc.and_(
        pc.and_(
            pc.equal(grouped["rows"], grouped["places"]),
            pc.equal(grouped["messages"], grouped["message_count"]),
        ),
        pc.and_(
            pc.equal(grouped["heads"], 1),
            pc.equal(grouped["first_group"], grouped["last_group"]),
        ),
    )
    group = pc.if_else(is_complete, grouped["first_group"], pa.scalar(None, pa.string()))
    return group.combine_chunks()


def _undecidable(
    transaction_ids: pa.Array, unreadable: Sequence[UnreadableFile], given_up: Collection[str]
) -> dict[str, str]:
    """Of transactions that lack rows, find those of which an unreadable file may hold rows.

    Returns: the problem of each, without the transactions that are given up.
    """
    problems: dict[str, str] = {}
    for file in unreadable:
        covered = transaction_ids.filter(pa.array(file.covers(transaction_ids)))
        problems |= dict.fromkeys(covered.to_pylist(), file.problem)
    return {name: problem for name, problem in problems.items() if name not in given_up}


def _is_plain(claims: pa.Table, by_id: Groups, group: pa.Array, with_facts: pa.Array) -> Flags:
    """Tell which claims columns can decide; claims of one transaction stay together."""
    group_of_halves = group.take(pa.array(by_id.place))
    is_of_group = pc.fill_null(pc.equal(group_of_halves, claims["producer_group"]), False)  # noqa: FBT003
    is_end = pc.is_in(claims["kind"], value_set=pa.array(list(_PLAIN_ENDS)))
    is_new = ~flags(pc.is_in(by_id.keys, value_set=with_facts))
    is_first = (by_id.count() == 1) & is_new
    is_end = pc.and_(is_end, is_of_first_life(claims))
    is_plain: Flags = is_first[by_id.place] & flags(pc.and_(is_of_group, is_end))
    return is_plain


def _with_store_times(
    claims: pa.Table, summaries: pa.Table, now_ms: int, received_ms: ReceivedMs
) -> pa.Table:
    """Give each COMMIT from which a pause counts the time at which the store received it.

    Its own time is the claimer's, whose clock may be wrong (decision 0030).
    """
    paused = pc.unique(summaries.filter(pc.is_valid(summaries["delay_s"]))["transaction_id"])
    is_commit = pc.equal(claims["kind"], ClaimKind.COMMIT.value)
    begins_pause = pc.and_(is_commit, pc.is_in(claims["transaction_id"], value_set=paused))
    versions = integers(claims["_commit_version"], 0)
    received = received_ms(np.unique(versions[flags(begins_pause)]).tolist())
    if not received:
        return claims
    times_ms = [received.get(version, now_ms) for version in versions.tolist()]
    times = pa.array(times_ms, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(MICROSECONDS_UTC)
    column = claims.schema.get_field_index("op_timestamp")
    values = pc.if_else(begins_pause, times, claims["op_timestamp"])
    return claims.set_column(column, claims.schema.field(column), values)


def _plain_facts(claims: pa.Table, now_ms: int) -> pa.Table:
    """Make a fact for each claim of the common case."""
    now, count = timestamp(now_ms), claims.num_rows
    kinds, states = pa.array(list(_PLAIN_ENDS)), pa.array(list(_PLAIN_ENDS.values()))
    columns = {
        "transaction_id": claims["transaction_id"],
        "state": states.take(pc.index_in(claims["kind"], value_set=kinds).combine_chunks()),
        "sequences": pa.nulls(count, SETTLED.columns.field("sequences").type),
        "op_version": claims["_commit_version"],
        "ordinal": claims["ordinal"],
        "settled_timestamp": pa.repeat(pa.scalar(now, MICROSECONDS_UTC), count),
        "source": claims["source"],
        "producer_group": claims["producer_group"],
        "life": pa.repeat(pa.scalar(0, pa.int32()), count),
        "reason": claims["reason"],
        "op_timestamp": claims["op_timestamp"],
        "store_date": pa.repeat(pa.scalar(now.date()), count),
    }
    return pa.table(columns, schema=SETTLED.columns)


def _halves(
    claims: pa.Table, half: HalfLog, summaries: pa.Table, given_up: Mapping[str, str]
) -> tuple[dict[str, Halves], dict[str, str]]:
    """Compare the halves of the transactions of these claims, with those that are given up.

    Returns: the halves by transaction, and the problem of each that cannot be compared.
    """
    halves = {name: Halves(group, None, 0) for name, group in given_up.items()}
    if claims.num_rows == 0:
        return halves, {}
    ids = pc.unique(claims["transaction_id"])
    summaries = summaries.filter(pc.is_in(summaries["transaction_id"], value_set=ids))
    try:
        return {**halves, **half.readable_halves_of(summaries)}, {}
    except NOBODYS_FAULT:
        raise
    except Exception:  # noqa: BLE001 - one strange row must not stop the others
        return _halves_one_by_one(ids, half, summaries, halves)


def _halves_one_by_one(
    ids: pa.Array, half: HalfLog, summaries: pa.Table, halves: dict[str, Halves]
) -> tuple[dict[str, Halves], dict[str, str]]:
    """Compare the halves of one transaction after the other, to find the strange ones."""
    problems: dict[str, str] = {}
    for transaction_id in ids.to_pylist():
        rows = summaries.filter(pc.equal(summaries["transaction_id"], transaction_id))
        try:
            halves |= half.readable_halves_of(rows)
        except NOBODYS_FAULT:
            raise
        except Exception as error:  # noqa: BLE001 - kept as the problem of this transaction
            if transaction_id not in halves:
                kind = type(error).__name__
                problems[transaction_id] = f"its halves cannot be compared ({kind})"
    return halves, problems


def _folded(
    claims: pa.Table, halves: Mapping[str, Halves], settled: SettledLog, now_ms: int
) -> pa.Table:
    """Fold these claims; return the facts."""
    if claims.num_rows == 0:
        return SETTLED.columns.empty_table()
    ids = pc.unique(claims["transaction_id"])
    standings = settled.standings(ids)
    facts: list[Fact] = []
    for transaction_id, transaction_claims in _by_transaction(claims).items():
        # Claims about a transaction without any half have no effect.
        if transaction_id in halves:
            standing = standings.get(transaction_id, PENDING)
            facts.extend(fold(transaction_claims, halves[transaction_id], standing)[1])
    times = _op_timestamps(claims)
    op_timestamps = [times[fact.claim.op_version, fact.claim.ordinal] for fact in facts]
    return settled_table(facts, now_ms, op_timestamps)


def _by_transaction(claims: pa.Table) -> dict[str, list[Claim]]:
    grouped: dict[str, list[Claim]] = {}
    for claim in claims_of_table(claims):
        grouped.setdefault(claim.transaction_id, []).append(claim)
    return grouped


def _op_timestamps(claims: pa.Table) -> dict[tuple[int, int], object]:
    """Return the op_timestamp of each claim, by op_version and ordinal."""
    versions, ordinals = claims["_commit_version"].to_pylist(), claims["ordinal"].to_pylist()
    times = claims["op_timestamp"].to_pylist()
    return dict(zip(zip(versions, ordinals, strict=True), times, strict=True))


def settle_deliveries(
    claims: pa.Table,
    ends: pa.Table,
    logs: tuple[HalfLog, ScheduleLog | None, SettledLog],
    now_ms: int,
    given_up: Collection[str] = (),
) -> tuple[pa.Table, dict[str, str]]:
    """Decide DELIVER and RECALL claims.

    Args:
        claims: CLAIM_COLUMNS and `_commit_version`, of these two kinds only.
        ends: the facts about whole transactions of the same range of claims.
        logs: half, schedule and settled, pinned; half is not older than the range.
        now_ms: the settled_timestamp of the facts.
        given_up: transactions whose unreadable messages count as missing.

    Returns: the facts, as SETTLED, and by transaction why its claims must wait: a file that may
        hold messages that they name cannot be read.

    Reads: half, the schedule, settled. Commits: 0.
    """
    if claims.num_rows == 0:
        return SETTLED.columns.empty_table(), {}
    half, schedule, settled = logs
    ids = pc.unique(claims["transaction_id"])
    messages, unreadable = readable_delayed_messages(half, schedule, ids)
    problems = _undecidable(_lacking(claims, messages), unreadable, given_up) if unreadable else {}
    if problems:
        waiting = pa.array(list(problems), pa.string())
        claims, messages = (
            rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=waiting)))
            for rows in (claims, messages)
        )
    return _delivered(claims, messages, ends, settled, now_ms), problems


def _lacking(claims: pa.Table, messages: pa.Table) -> pa.Array:
    """Find the transactions with claims about messages that were not read, or about all of them."""
    by_id = Groups.of(claims["transaction_id"])
    claim, sequence = list_items(claims["sequences"])
    row = find_pairs((by_id.place[claim], sequence), _addresses(messages, by_id.keys))
    is_lacking = flags(pc.is_null(claims["sequences"])).copy()
    is_lacking[claim[row == NOT_FOUND]] = True
    return pc.unique(claims["transaction_id"].filter(pa.array(is_lacking)))


def _delivered(
    claims: pa.Table, messages: pa.Table, ends: pa.Table, settled: SettledLog, now_ms: int
) -> pa.Table:
    """Make the facts of claims whose messages were read."""
    if claims.num_rows == 0:
        return SETTLED.columns.empty_table()
    by_id = Groups.of(claims["transaction_id"])
    commits = _commits(by_id.keys, ends, settled)
    addresses = _addresses(messages, by_id.keys)
    named = _named(claims, by_id, addresses)
    row = find_pairs((named.place, named.sequence), addresses)
    groups = messages["producer_group"].take(pa.array(row, mask=row == NOT_FOUND))
    named = named.filter(_fits(named, claims, groups, commits))
    deliveries = settled.deliveries_of(by_id.keys)
    named = named.filter(~_are_among((named.place, named.sequence), deliveries, by_id.keys))
    return _facts(claims, _first(named, claims), commits, now_ms)


@dataclass(frozen=True, slots=True)
class _Commits:
    """The COMMIT of each transaction, if there is one: its place in the op log and its life."""

    is_there: Flags
    op_version: Integers
    ordinal: Integers
    life: Integers


def _commits(ids: pa.Array, ends: pa.Table, settled: SettledLog) -> _Commits:
    """Find the COMMIT of each transaction: in the settled log, or among the facts of this range."""
    earlier = settled.facts_of(ids).select(_COMMIT_COLUMNS)
    facts = pa.concat_tables([earlier, ends.select(_COMMIT_COLUMNS)])
    facts = facts.filter(pc.equal(facts["state"], TransactionState.COMMITTED.value))
    row = integers(pc.index_in(ids, value_set=facts["transaction_id"].combine_chunks()), NOT_FOUND)
    by_id = facts.take(pa.array(row, mask=row == NOT_FOUND))
    return _Commits(
        row != NOT_FOUND,
        integers(by_id["op_version"], 0),
        integers(by_id["ordinal"], 0),
        integers(by_id["life"], 0),
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """Messages that claims name: the claim's row, its transaction's number, the sequence."""

    claim: Integers
    place: Integers
    sequence: Integers

    def filter(self, rows: Flags | Integers) -> _Named:
        return _Named(self.claim[rows], self.place[rows], self.sequence[rows])


def _named(claims: pa.Table, by_id: Groups, addresses: tuple[Integers, Integers]) -> _Named:
    """List the messages that claims name; a claim without sequences names all delayed messages."""
    claim, sequence = list_items(claims["sequences"])
    by_sequence = _Named(claim, by_id.place[claim], sequence)
    without = np.flatnonzero(flags(pc.is_null(claims["sequences"])))
    place, sequence = addresses
    claim, message = equal_pairs(by_id.place[without], place, len(by_id.keys))
    of_all = _Named(without[claim], place[message], sequence[message])
    return _Named(
        np.concatenate([by_sequence.claim, of_all.claim]),
        np.concatenate([by_sequence.place, of_all.place]),
        np.concatenate([by_sequence.sequence, of_all.sequence]),
    )


def _fits(named: _Named, claims: pa.Table, groups: pa.ChunkedArray, commits: _Commits) -> Flags:
    """Tell which named messages are delayed, of the claim's group, and committed before it.

    `groups` are the producer groups of the named messages; null for a message that is not delayed.
    """
    same_group = pc.equal(claims["producer_group"].take(pa.array(named.claim)), groups)
    version = integers(claims["_commit_version"], 0)[named.claim]
    ordinal = integers(claims["ordinal"], 0)[named.claim]
    committed = commits.op_version[named.place]
    is_later = (version > committed) | (
        (version == committed) & (ordinal > commits.ordinal[named.place])
    )
    is_same_group = flags(pc.fill_null(same_group, False))  # noqa: FBT003
    fits: Flags = is_same_group & is_later & commits.is_there[named.place]
    return fits


def _first(named: _Named, claims: pa.Table) -> _Named:
    """Keep the first claim about each message, in the order of the claims."""
    version, ordinal = integers(claims["_commit_version"], 0), integers(claims["ordinal"], 0)
    order = np.lexsort((ordinal[named.claim], version[named.claim]))
    ordered = named.filter(order)
    return ordered.filter(first_of_each(ordered.place, ordered.sequence))


def _facts(claims: pa.Table, named: _Named, commits: _Commits, now_ms: int) -> pa.Table:
    """Make a fact for each claim that took effect, with the messages for which it did."""
    named = named.filter(np.lexsort((named.sequence, named.claim)))
    rows, begins = np.unique(named.claim, return_index=True)
    ends = np.append(begins, len(named.claim))
    sequences = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(named.sequence))
    claims = claims.take(pa.array(rows))
    now = pa.scalar(timestamp(now_ms), MICROSECONDS_UTC)
    columns = {
        **{name: claims[name] for name in SETTLED.columns.names if name in claims.column_names},
        "state": _DELIVERED_STATES.take(
            pc.index_in(claims["kind"], value_set=_DELIVERY_KINDS).combine_chunks()
        ),
        "sequences": sequences,
        "op_version": claims["_commit_version"],
        "settled_timestamp": pa.repeat(now, len(rows)),
        "life": pa.array(commits.life[named.place[begins]], pa.int32()),
        "store_date": pa.repeat(pa.scalar(timestamp(now_ms).date()), len(rows)),
    }
    return pa.table([columns[name] for name in SETTLED.columns.names], schema=SETTLED.columns)


def _are_among(addresses: tuple[Integers, Integers], deliveries: pa.Table, ids: pa.Array) -> Flags:
    """Tell whether each message is named by one of these facts."""
    row, sequence = list_items(deliveries["sequences"])
    place = integers(pc.index_in(deliveries["transaction_id"], value_set=ids), NOT_FOUND)[row]
    is_among: Flags = find_pairs(addresses, (place, sequence)) != NOT_FOUND
    return is_among


def _addresses(messages: pa.Table, ids: pa.Array) -> tuple[Integers, Integers]:
    """Return the number in `ids` of each message's transaction, and each message's sequence."""
    place = integers(pc.index_in(messages["transaction_id"], value_set=ids), NOT_FOUND)
    return place, integers(messages["sequence"], NOT_FOUND)
