"""`txmq show`, `open`, `discarded`, `resolve` and `resume`: transactions one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState
from txmq.message.names import shown_name, stored_name
from txmq.ops.admin.life import TransactionLife
from txmq.ops.admin.operator import DiscardedTransaction, OpenTransaction, Operator, OperatorResult
from txmq.ops.admin.status import Admin
from txmq.ops.cli.shared import (
    AsJson,
    Location,
    Shown,
    list_console,
    location_and,
    moment,
    print_json,
    print_result,
    rows_view,
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

discarded_app = typer.Typer(no_args_is_help=True, help="Transactions that nobody asks about.")


def add_transaction_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(show)
    app.command("open")(list_open)
    app.command()(resolve)
    app.command()(resume)
    app.add_typer(discarded_app, name="discarded")


def show(
    location: Location, transaction_id: TransactionId = None, *, as_json: AsJson = False
) -> None:
    """Show everything about one transaction, in order of time. Bodies are never shown."""
    location, transaction_id = location_and(location, transaction_id, "TRANSACTION_ID")
    life = Admin(open_store(location)).transaction(transaction_id)
    print_result(life, _life_view, as_json=as_json)


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
    _print_list(transactions, limit, _open_view, as_json=as_json)


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
    _print_list(transactions, limit, _discarded_view, as_json=as_json)


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
        print_result(result, _give_up_view, as_json=as_json)
        return
    result = operator.resolve(transaction_id, end, reason=reason, apply=apply)
    print_result(result, _claim_view, as_json=as_json)


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
    print_result(result, _claim_view, as_json=as_json)


def _stored(group: str | None) -> str | None:
    return None if group is None else stored_name(group)


def _print_list(
    transactions: Sequence[Shown],
    limit: int | None,
    view: Callable[[Sequence[Shown], int], RenderableType],
    *,
    as_json: bool,
) -> None:
    total = len(transactions)
    if as_json:
        values = [transaction.to_dict() for transaction in transactions[:limit]]
        print_json({"total": total, "transactions": values})
    else:
        list_console().print(view(transactions[: limit or SHOWN_TRANSACTIONS], total))


# --- views ----------------------------------------------------------------------------------------


def _life_view(life: TransactionLife) -> RenderableType:
    state = "unknown" if life.state is None else life.state.value
    head = Text(f"{life.transaction_id}: {state}", style="bold")
    facts = (
        f"group {shown_name(life.producer_group or '?')}, life {life.life}, "
        f"{life.check_times} checks, {_halves(life)}"
    )
    table = Table(box=None, header_style="bold")
    for column in ("time", "table", "what", "details"):
        # An id that is cut is no id; a narrow terminal folds it.
        table.add_column(column, overflow="fold")
    for event in life.events:
        table.add_row(
            moment(event.at),
            event.stage.value,
            Text(event.title),
            Text(", ".join(f"{name} {_text(value)}" for name, value in event.details.items())),
        )
    return Group(head, Text(facts), table)


def _halves(life: TransactionLife) -> str:
    if not life.messages_found and life.message_count is None:
        return "no half message is left" if life.producer_group else "no half message"
    promised = "?" if life.message_count is None else f"{life.message_count:,}"
    return f"{life.messages_found:,} of {promised} messages"


def _open_view(transactions: Sequence[OpenTransaction], total: int) -> RenderableType:
    columns = ("transaction", "state", "group", "age", "checks", "next check", "reason", "problem")
    rows = [
        (
            transaction.transaction_id,
            transaction.state.value,
            shown_name(transaction.producer_group),
            _age(transaction.age_s),
            f"{transaction.check_times:,}",
            "due" if transaction.is_due else moment(transaction.next_check),
            transaction.reason or "",
            transaction.problem or "",
        )
        for transaction in transactions
    ]
    return rows_view(columns, rows, f"{total:,} without a final end, {len(rows):,} shown")


def _age(age_s: float | None) -> str:
    return "" if age_s is None else str(timedelta(seconds=round(age_s)))


def _discarded_view(transactions: Sequence[DiscardedTransaction], total: int) -> RenderableType:
    columns = ("transaction", "group", "discarded", "checks", "reason")
    rows = [
        (
            transaction.transaction_id,
            shown_name(transaction.producer_group),
            moment(transaction.discarded_at),
            f"{transaction.check_times:,}",
            transaction.reason or "",
        )
        for transaction in transactions
    ]
    return rows_view(columns, rows, f"{total:,} discarded, {len(rows):,} shown")


def _claim_view(result: OperatorResult) -> RenderableType:
    """The effect of an operator's claim; the last line says whether it was written."""
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


_FOLLOWS = {
    ClaimKind.COMMIT: "its messages become visible with the next round of the publisher",
    ClaimKind.ROLLBACK: "its messages are never shown",
    ClaimKind.RESUME: "its listener is asked again at once, from zero checks",
}


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


def _text(value: Any) -> str:
    return moment(value) if isinstance(value, datetime) else str(value)
