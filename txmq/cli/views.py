"""How the command line shows what `admin` and `verify` return; bodies never come here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txmq.admin.life import TransactionLife
from txmq.admin.open import DiscardedTransaction, OpenTransaction
from txmq.admin.operator import OperatorResult
from txmq.admin.status import Lag, Status
from txmq.check.recheck import RecheckResult
from txmq.lifecycle import ClaimKind, ClaimSource
from txmq.maintenance.service import MaintenanceResult
from txmq.message.names import shown_name
from txmq.verify import (
    BusinessReport,
    BusinessResult,
    InvariantResult,
    VerifyComparison,
    VerifyReport,
)

SHOWN_VIOLATIONS = 5
SHOWN_INCOMPLETE = 5


def status_view(status: Status) -> RenderableType:
    """A store at one moment."""
    parts: list[RenderableType] = [
        Text(f"{status.location} at {_moment(status.at)}", style="bold"),
        _pairs("transactions", _transactions(status)),
        _pairs(
            "visible messages",
            {shown_name(name): f"{n:,}" for name, n in status.messages.items()},
        ),
        _pairs("progress", _progress(status)),
    ]
    if status.members:
        members = {shown_name(group): f"{count:,}" for group, count in status.members.items()}
        parts.append(_pairs("producers that answer checks", members))
    parts += [
        Text(
            f"topic {shown_name(parked.topic)} is parked from op version {parked.from_version} "
            f"since {_moment(parked.since)}, {parked.attempts} attempts: {parked.reason}",
            style="red",
        )
        for parked in status.parked
    ]
    return Group(*parts)


def life_view(life: TransactionLife) -> RenderableType:
    """Everything about one transaction."""
    head = Text(f"{life.transaction_id}: {life.state.value}", style="bold")
    promised = "?" if life.message_count is None else f"{life.message_count:,}"
    facts = (
        f"group {shown_name(life.producer_group or '?')}, life {life.life}, "
        f"{life.check_times} checks, "
        f"{life.messages_found:,} of {promised} messages"
    )
    table = Table("time", "table", "what", "details", box=None, header_style="bold")
    for event in life.events:
        table.add_row(
            _moment(event.at),
            event.stage.value,
            Text(event.title),
            Text(", ".join(f"{name} {_text(value)}" for name, value in event.details.items())),
        )
    return Group(head, Text(facts), table)


def recheck_view(result: RecheckResult) -> RenderableType:
    """What a recheck came to, and what it could not do."""
    checks = result.checks
    said = {
        "asked": f"{checks.asked:,}",
        "committed": f"{checks.committed:,}",
        "rolled back": f"{checks.rolled_back:,}",
        "unknown, asked again later": f"{checks.unknown:,}",
        "not asked yet": f"{checks.unasked:,}",
        "discarded": f"{checks.discarded:,}",
        "still open": f"{result.open_transactions:,}",
    }
    if checks.unheard_groups:
        said["groups without a listener"] = ", ".join(sorted(checks.unheard_groups))
    if result.incomplete:
        said["with messages missing"] = ", ".join(result.incomplete[:SHOWN_INCOMPLETE])
    if not result.is_complete:
        said["not finished"] = "another service asks now; nothing is lost"
    return _pairs("recheck", said)


def maintenance_view(result: MaintenanceResult) -> RenderableType:
    """What a round of maintenance did."""
    retained = result.retained
    said = {
        "small files merged": f"{result.compacted.files_before:,} into "
        f"{result.compacted.files_after:,}",
        "checkpoints made": f"{result.checkpoints:,}",
        "log entries cleaned": f"{result.commits_cleaned:,}",
        "data files removed": f"{result.data_files_removed:,}",
        "leftovers removed": f"{result.leftovers_removed:,}",
        "files of topics removed": f"{result.topic_files_removed:,}",
        "transactions expired": f"{retained.expired:,}",
        "days retired": f"half {len(retained.half_days)}, op {len(retained.op_days)}, "
        f"settled {len(retained.settled_days)}",
    }
    return _pairs("maintenance", {**said, **{f"failed: {k}": v for k, v in result.failed.items()}})


def open_view(shown: Sequence[OpenTransaction], total: int) -> RenderableType:
    """Open transactions, and how many there are in all."""
    columns = ("transaction", "state", "group", "age", "checks", "next check", "reason", "problem")
    rows = [
        (
            one.transaction_id,
            one.state.value,
            shown_name(one.producer_group),
            "" if one.age_s is None else str(timedelta(seconds=round(one.age_s))),
            f"{one.check_times:,}",
            "due" if one.is_due else _optional_moment(one.next_check),
            one.reason or "",
            one.problem or "",
        )
        for one in shown
    ]
    return _listed(columns, rows, f"{total:,} without a final end")


def discarded_view(shown: Sequence[DiscardedTransaction], total: int) -> RenderableType:
    """Discarded transactions, and how many there are in all."""
    columns = ("transaction", "group", "discarded", "checks", "reason")
    rows = [
        (
            one.transaction_id,
            shown_name(one.producer_group),
            _optional_moment(one.discarded_at),
            f"{one.check_times:,}",
            one.reason or "",
        )
        for one in shown
    ]
    return _listed(columns, rows, f"{total:,} discarded")


def operator_view(result: OperatorResult) -> RenderableType:
    """What an operator's claim leads to, or has led to; the last line says which of both."""
    count = sum(result.messages.values())
    topics = ", ".join(f"{topic} {number:,}" for topic, number in result.messages.items())
    said = {
        "transaction": result.transaction_id,
        "group": shown_name(result.producer_group),
        "claim": result.kind.value,
        "reason": result.reason,
        "state": f"{result.state_before.value} -> {result.state_after.value}, life {result.life}",
        "messages": f"{count:,} ({topics or 'none'})",
    }
    if result.problem and result.kind is ClaimKind.RESUME:
        said["problem"] = f"{result.problem}: until it is repaired, no COMMIT takes effect"
    return Group(_pairs("operator's claim", said), _what_follows(result))


def verify_view(report: VerifyReport) -> RenderableType:
    """What was checked, what is broken, and the number of violations on the last line."""
    table = Table("", "promise", "violations", box=None, header_style="bold")
    for result in report.results:
        style = "red" if result.violation_count else "green"
        table.add_row(
            result.invariant, result.promise, Text(f"{result.violation_count:,}", style=style)
        )
    broken = [_broken(result) for result in report.results if result.violation_count]
    unseen = [Text(f"{name} is not checked: {why}") for name, why in report.not_checked.items()]
    business = [_business(report.business)] if report.business else []
    return Group(*_read(report), table, *unseen, *broken, *business, _last_line(report))


def comparison_view(found: VerifyComparison) -> RenderableType:
    """Both reports, where they differ, and on the last line whether both find nothing."""
    table = Table("differs", "plain", "spark", box=None, header_style="bold red")
    for one in found.differences:
        table.add_row(*map(Text, (one.what, one.plain, one.spark)))
    count = len(found.differences)
    said = f"{count:,} differences between the engines" if count else "both engines agree"
    style = "bold green" if found.is_clean else "bold red"
    count_text = f"{found.plain.violation_count:,} violations, {said}"
    return Group(
        verify_view(found.plain),
        verify_view(found.spark),
        *([table] if count else []),
        Text(f"{count_text}{_business_count(found.plain.business)}", style=style),
    )


def _transactions(status: Status) -> dict[str, str]:
    oldest = status.oldest_open_half_age_s
    age = "" if oldest is None else f", the oldest {oldest:,.0f} s old"
    unasked = ", ".join(f"{count:,} {reason}" for reason, count in status.unasked.items())
    return {
        "open": f"{status.open:,}{age}",
        "open, and could not be asked": unasked or "0",
        "committed": f"{status.committed:,}",
        "rolled back": f"{status.rolled_back:,}",
        "discarded": f"{status.discarded:,} ({status.dead_letters:,} dead letters)",
        "incomplete": f"{status.incomplete:,}",
        "expired": f"{status.expired:,}",
    }


def _progress(status: Status) -> dict[str, str]:
    scheduled = (
        {"scheduled": f"{status.scheduled:,} wait for their time"} if status.scheduled else {}
    )
    return scheduled | {
        "claims": f"op version {status.op_version}",
        "settled": _lag(status.settled),
        "published": _lag(status.published),
    }


def _lag(lag: Lag) -> str:
    if lag.op_versions == 0:
        return "all"
    return f"{lag.op_versions:,} versions behind, the oldest claim waits {lag.seconds:,.1f} s"


def _listed(columns: Sequence[str], rows: Sequence[Sequence[str]], total: str) -> RenderableType:
    """The first column is an id, which is of no use unless it is whole."""
    table = Table(box=None, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return Group(*([table] if rows else []), Text(f"{total}, {len(rows):,} shown"))


_FOLLOWS = {
    ClaimKind.COMMIT: "its messages become visible with the next round of the publisher",
    ClaimKind.ROLLBACK: "its messages are never shown",
    ClaimKind.RESUME: "its listener is asked again at once, from zero checks",
}


def _what_follows(result: OperatorResult) -> Text:
    state = result.state_after.value
    if not result.is_needed:
        return Text(f"already {state} (by {result.source}): nothing to write")
    follows = _FOLLOWS[result.kind]
    if not result.is_written:
        return Text(f"dry run, nothing was written; with --apply {follows}", style="bold")
    said = f"written at op version {result.op_version}; it is {state} (by {result.source})"
    # A resumed transaction may have met its next end before this look.
    is_as_planned = result.source == ClaimSource.OPERATOR.value
    return Text(f"{said}: {follows}" if is_as_planned else said, style="bold")


def _pairs(title: str, values: Mapping[str, str]) -> RenderableType:
    table = Table(show_header=False, box=None)
    for name, value in values.items():
        table.add_row(Text(f"  {name}"), Text(value))
    return Group(Text(title), table) if values else Text(f"{title}: none")


def _read(report: VerifyReport) -> list[RenderableType]:
    counts = report.counts
    kind = "drained" if report.drained else "running"
    read = (
        f"{counts['transactions']:,} transactions, {counts['messages']:,} messages, "
        f"{counts['claims']:,} claims, {counts['visible_messages']:,} visible, "
        f"{counts['dead_letters']:,} dead letters, {counts['not_published_yet']:,} on their way"
    )
    by = f"by the {report.engine} engine in {report.duration_s:,.1f} s"
    lines = [f"{report.location} ({kind}), read {by}", read, *_delays(report), *report.notes]
    lines += [f"not checked: topics/{name}" for name in report.unread]
    return [Text(line) for line in lines]


def _delays(report: VerifyReport) -> list[str]:
    names = ("scheduled", "delivered", "recalled", "overdue")
    counts = {name: report.counts[name] for name in names}
    if not any(counts.values()):
        return []
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    late = report.lateness
    if late.max_s is None:
        return [f"delayed: {told}"]
    return [f"delayed: {told}; late by {late.p99_s:.3f} s (p99), {late.max_s:.3f} s (longest)"]


def _broken(result: InvariantResult) -> RenderableType:
    lines = [f"{result.invariant}: {result.promise}"]
    shown = result.violations[:SHOWN_VIOLATIONS]
    lines += [f"  {violation.row_id} {violation.detail}" for violation in shown]
    hidden = result.violation_count - len(shown)
    lines += [f"  and {hidden:,} more"] if hidden else []
    return Text("\n".join(lines), style="red")


def _business(business: BusinessReport) -> RenderableType:
    """Apart from txmq's own promises: whatever is wrong here was said by somebody else."""
    title = "messages beside local transactions (I12); what differs is no fault of txmq's"
    return Group(Text(title), *map(_business_result, business.results))


def _business_result(result: BusinessResult) -> RenderableType:
    counts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in result.counts.items() if n)
    lines = [f"  {result.producer_group}, {result.place}: {counts or 'nothing to compare'}"]
    shown = result.violations[:SHOWN_VIOLATIONS]
    lines += [f"    {violation.transaction_id} {violation.detail}" for violation in shown]
    hidden = result.violation_count - len(shown)
    lines += [f"    and {hidden:,} more"] if hidden else []
    return Text("\n".join(lines), style="red" if shown else "green")


def _business_count(business: BusinessReport | None) -> str:
    if business is None:
        return ""
    faults = ", ".join(f"{fault.value} {n:,}" for fault, n in business.fault_counts.items())
    told = f" ({faults})" if faults else ""
    return f"; {business.violation_count:,} between messages and local transactions{told}"


def _last_line(report: VerifyReport) -> RenderableType:
    count = report.violation_count
    text = f"{count:,} violation" if count == 1 else f"{count:,} violations"
    return Text(
        f"{text}{_business_count(report.business)}",
        style="bold green" if report.is_clean else "bold red",
    )


def _optional_moment(at: datetime | None) -> str:
    return "" if at is None else _moment(at)


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _text(value: Any) -> str:
    return _moment(value) if isinstance(value, datetime) else str(value)
