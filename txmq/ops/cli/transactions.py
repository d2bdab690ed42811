"""`txmq show`, `open`, `discarded`, `resolve` and `resume`: transactions one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState
from txmq.message.names import shown_name, stored_name
from txmq.ops.admin.life import LifeEvent, TransactionLife
from txmq.ops.admin.operator import Operator, OperatorResult
from txmq.ops.admin.status import Admin
from txmq.ops.cli.shared import (
    AsJson,
    Column,
    Location,
    location_and,
    moment,
    rows_view,
    show,
    table,
    titled_pairs,
)
from txmq.store.store import open_store

SHOWN_TRANSACTIONS = 50

TransactionId = Annotated[
    str | None, typer.Argument(help="The id that begin_transaction gave.", show_default=False)
]
GroupFilter = Annotated[str | None, typer.Option("--group", help="Of this producer group only.")]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", min=1, help=f"List so many; without it {SHOWN_TRANSACTIONS}, as JSON all."
    ),
]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept with the claim.")]
Apply = Annotated[bool, typer.Option("--apply", help="Write it; without this it is shown only.")]

_FOLLOWS = {
    ClaimKind.COMMIT: "its messages become visible with the next round of the publisher",
    ClaimKind.ROLLBACK: "its messages are never shown",
    ClaimKind.RESUME: "its listener is asked again at once, from zero checks",
}

discarded_app = typer.Typer(no_args_is_help=True, help="Transactions that nobody asks about.")


def add_transaction_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("show")(show_transaction)
    app.command("open")(list_open)
    app.command()(resolve)
    app.command()(resume)
    app.add_typer(discarded_app, name="discarded")


def show_transaction(
    location: Location, transaction_id: TransactionId = None, *, as_json: AsJson = False
) -> None:
    """Show everything about one transaction, in order of time. Bodies are never shown."""
    location, transaction_id = location_and(location, transaction_id, "TRANSACTION_ID")
    life = Admin(open_store(location)).transaction(transaction_id)
    show(life, _life_view, as_json=as_json)


def list_open(
    location: Location,
    *,
    group: GroupFilter = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List the transactions without a final end, oldest first."""
    operator = Operator(open_store(location))
    transactions = operator.open_transactions(producer_group=_stored(group))
    _show_list(transactions, limit, _OPEN, "without a final end", as_json=as_json)


@discarded_app.command("list")
def list_discarded(
    location: Location,
    *,
    group: GroupFilter = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List the transactions that were discarded, oldest first; `txmq resume` opens one again."""
    transactions = Operator(open_store(location)).discarded(producer_group=_stored(group))
    _show_list(transactions, limit, _DISCARDED, "discarded", as_json=as_json)


def resolve(  # noqa: PLR0913 - the options of a command
    location: Location,
    transaction_id: TransactionId = None,
    *,
    reason: Why,
    commit: Annotated[bool, typer.Option("--commit", help="Its messages become visible.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Its messages are never shown.")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="It is set aside: do not wait for unreadable files.")
    ] = False,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """End a transaction by hand; without --apply only show what would follow."""
    if [commit, rollback, give_up].count(True) != 1:
        hint = "--commit / --rollback / --give-up"
        raise typer.BadParameter("give one of the three", param_hint=hint)
    end = LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK
    location, transaction_id = location_and(location, transaction_id, "TRANSACTION_ID")
    operator = Operator(open_store(location))
    if give_up:
        result = operator.give_up(transaction_id, reason=reason, apply=apply)
        show(result, _give_up_view, as_json=as_json)
        return
    result = operator.resolve(transaction_id, end, reason=reason, apply=apply)
    show(result, _claim_view, as_json=as_json)


def resume(
    location: Location,
    transaction_id: TransactionId = None,
    *,
    reason: Why,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Open a DISCARDED or INCOMPLETE transaction again; without --apply only show it."""
    location, transaction_id = location_and(location, transaction_id, "TRANSACTION_ID")
    operator = Operator(open_store(location))
    result = operator.resume(transaction_id, reason=reason, apply=apply)
    show(result, _claim_view, as_json=as_json)


def _stored(group: str | None) -> str | None:
    return None if group is None else stored_name(group)


def _show_list(
    transactions: Sequence[object],
    limit: int | None,
    columns: Mapping[str, Column],
    what: str,
    *,
    as_json: bool,
) -> None:
    total = len(transactions)
    rows = transactions[: limit if as_json else limit or SHOWN_TRANSACTIONS]
    summary = f"{total:,} {what}, {len(rows):,} shown"
    result = {"total": total, "transactions": rows}
    show(result, lambda _: table(rows, columns, summary), as_json=as_json)


def _age(age_s: float | None) -> str:
    return "" if age_s is None else str(timedelta(seconds=round(age_s)))


_OPEN: Mapping[str, Column] = {
    "transaction": "transaction_id",
    "state": "state",
    "group": lambda transaction: shown_name(transaction.producer_group),
    "age": lambda transaction: _age(transaction.age_s),
    "checks": "check_times",
    "next check": lambda transaction: "due" if transaction.is_due else transaction.next_check,
    "reason": "reason",
    "problem": "problem",
}
_DISCARDED: Mapping[str, Column] = {
    "transaction": "transaction_id",
    "group": lambda transaction: shown_name(transaction.producer_group),
    "discarded": "discarded_at",
    "checks": "check_times",
    "reason": "reason",
}


def _life_view(life: TransactionLife) -> RenderableType:
    state = "unknown" if life.state is None else life.state.value
    head = Text(f"{life.transaction_id}: {state}", style="bold")
    facts = (
        f"group {shown_name(life.producer_group or '?')}, life {life.life}, "
        f"{life.check_times} checks, {_halves(life)}"
    )
    rows = [(event.at, event.stage, event.title, _details(event)) for event in life.events]
    return Group(head, Text(facts), rows_view(("time", "table", "what", "details"), rows, ""))


def _halves(life: TransactionLife) -> str:
    if not life.messages_found and life.message_count is None:
        return "no half message is left" if life.producer_group else "no half message"
    promised = "?" if life.message_count is None else f"{life.message_count:,}"
    return f"{life.messages_found:,} of {promised} messages"


def _details(event: LifeEvent) -> str:
    return ", ".join(
        f"{name} {moment(value) if isinstance(value, datetime) else value}"
        for name, value in event.details.items()
    )


def _claim_view(result: OperatorResult) -> RenderableType:
    """Show the effect of an operator's claim; the last line says whether it was written."""
    count = sum(result.messages.values())
    topics = ", ".join(f"{topic} {number:,}" for topic, number in result.messages.items())
    lines = {
        "transaction": result.transaction_id,
        "group": shown_name(result.producer_group),
        "claim": result.kind.value,
        "reason": result.reason,
        "state": f"{result.state_before.value} -> {result.state_after.value}, life {result.life}",
        "messages": f"{count:,} ({topics or 'none'})",
    }
    if result.problem and result.kind is ClaimKind.RESUME:
        lines["problem"] = f"{result.problem}: until it is repaired, no COMMIT takes effect"
    return Group(titled_pairs("operator's claim", lines), _what_follows(result))


def _what_follows(result: OperatorResult) -> Text:
    state = result.state_after.value
    if not result.is_needed:
        return Text(f"already {state} (by {result.source}): nothing to write")
    follows = _FOLLOWS[result.kind]
    if not result.is_written:
        return Text(f"dry run, nothing was written; with --apply {follows}", style="bold")
    written = f"written at op version {result.op_version}; it is {state} (by {result.source})"
    # A resumed transaction may have ended again before its state was read.
    is_as_planned = result.source == ClaimSource.OPERATOR.value
    return Text(f"{written}: {follows}" if is_as_planned else written, style="bold")


def _give_up_view(result: OperatorResult) -> RenderableType:
    lines = {
        "transaction": result.transaction_id,
        "group": shown_name(result.producer_group),
        "reason": result.reason,
        "cannot be read": result.problem or "",
        "state": f"{result.state_before.value} -> {result.state_after.value}",
        "can be read": f"{sum(result.messages.values()):,} messages",
    }
    if not result.is_needed:
        follows = "it is given up already: nothing to write"
    elif result.is_written:
        follows = f"written at op version {result.op_version}; the publisher goes on without it"
    else:
        follows = "dry run, nothing was written; with --apply the publisher goes on without it"
    return Group(titled_pairs("give up", lines), Text(follows, style="bold"))
