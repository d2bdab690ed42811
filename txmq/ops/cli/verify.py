"""`txmq verify`: check every promise, and show what is broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txmq.ops.admin.status import verify_opened
from txmq.ops.cli.shared import AsJson, ConfigFile, Location, show
from txmq.store.store import Store, open_store
from txmq.verify import BusinessReport, BusinessResult, InvariantResult, VerifyReport, marker_places

EXIT_VIOLATIONS = 1
EXIT_BUSINESS_VIOLATIONS = 3
SHOWN_VIOLATIONS = 5
STILL_RUNS = (
    "What is not published yet counts as lost here: if a broker or a producer runs, look again "
    "with --running"
)
_BUSINESS_HELP = (
    "Compare the messages of a producer group with its local transactions (I12), by their markers: "
    "GROUP=delta:LOCATION for a Delta table, GROUP=database:VARIABLE for a database whose URL that "
    "environment variable holds, with :TABLE behind it where the marker table is not txmq_marker. "
    "Once for each group."
)


def add_verify_command(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(verify)


def verify(
    location: Location,
    config: ConfigFile = None,
    *,
    as_json: AsJson = False,
    drained: Annotated[
        bool,
        typer.Option(
            "--drained/--running",
            help="Running: what is not published yet is open. Drained: it is lost.",
        ),
    ] = True,
    business: Annotated[
        list[str] | None, typer.Option("--business", metavar="GROUP=PLACE", help=_BUSINESS_HELP)
    ] = None,
) -> None:
    """Check every promise in docs/invariants.md.

    Exit code 1 if txmq breaks one; 3 if it keeps all of them, but a listener, a producer or an
    operator said what the local transaction does not; 2 if something cannot be read.
    """
    places = marker_places(business or [])
    store = open_store(location, config)
    report = verify_opened(store, drained=drained, business=places)
    show(report, _view, as_json=as_json)
    if not report.is_txmq_clean:
        raise typer.Exit(EXIT_VIOLATIONS)
    if not report.is_business_clean:
        raise typer.Exit(EXIT_BUSINESS_VIOLATIONS)


def verify_after(store: Store, *, is_shown: bool) -> None:
    """Verify a store that a command has changed; exit code EXIT_VIOLATIONS if it is not clean."""
    report = verify_opened(store, drained=False)
    if is_shown:
        show(report, _view, as_json=False)
    if not report.is_txmq_clean:
        raise typer.Exit(EXIT_VIOLATIONS)


def _view(report: VerifyReport) -> RenderableType:
    """Show what was checked and what is broken; the last line counts the violations."""
    table = Table("", "promise", "violations", box=None, header_style="bold")
    for result in report.results:
        style = "red" if result.violation_count else "green"
        table.add_row(
            result.invariant, result.promise, Text(f"{result.violation_count:,}", style=style)
        )
    broken = [_broken(result) for result in report.results if result.violation_count]
    unseen = [Text(f"{name} is not checked: {why}") for name, why in report.not_checked.items()]
    business = [_business(report.business)] if report.business else []
    hint = [Text(STILL_RUNS)] if report.drained and broken else []
    return Group(*_read(report), table, *unseen, *broken, *business, *hint, _last_line(report))


def _read(report: VerifyReport) -> list[RenderableType]:
    counts = report.counts
    kind = "drained" if report.drained else "running"
    read = (
        f"{counts['transactions']:,} transactions, {counts['messages']:,} messages, "
        f"{counts['claims']:,} claims, {counts['visible_messages']:,} visible, "
        f"{counts['dead_letters']:,} dead letters, {counts['not_published_yet']:,} on their way"
    )
    first = f"{report.location} ({kind}), read in {report.duration_s:,.1f} s"
    lines = [first, read, *_delays(report), *report.notes]
    lines += [f"not checked: topics/{name}" for name in report.unread]
    return [Text(line) for line in lines]


def _delays(report: VerifyReport) -> list[str]:
    names = ("scheduled", "delivered", "recalled", "overdue")
    counts = {name: report.counts[name] for name in names}
    if not any(counts.values()):
        return []
    delayed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    late = report.lateness
    if late.max_s is None:
        return [f"delayed: {delayed}"]
    return [f"delayed: {delayed}; late by {late.p99_s:.3f} s (p99), {late.max_s:.3f} s (longest)"]


def _broken(result: InvariantResult) -> RenderableType:
    shown = result.violations[:SHOWN_VIOLATIONS]
    rows = [f"{violation.row_id} {violation.detail}" for violation in shown]
    lines = _first(rows, result.violation_count, indent=2)
    return Text("\n".join([f"{result.invariant}: {result.promise}", *lines]), style="red")


def _first(rows: Sequence[str], count: int, *, indent: int) -> list[str]:
    """Indent the first rows, and say how many more there are."""
    more = [f"and {count - len(rows):,} more"] if count > len(rows) else []
    return [" " * indent + row for row in (*rows, *more)]


def _business(business: BusinessReport) -> RenderableType:
    """Show apart from txmq's promises what a listener, producer or operator did wrong."""
    title = "messages beside local transactions (I12); what differs is no fault of txmq's"
    return Group(Text(title), *map(_business_result, business.results))


def _business_result(result: BusinessResult) -> RenderableType:
    counts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in result.counts.items() if n)
    head = f"  {result.producer_group}, {result.place}: {counts or 'nothing to compare'}"
    shown = result.violations[:SHOWN_VIOLATIONS]
    rows = [f"{violation.transaction_id} {violation.detail}" for violation in shown]
    lines = _first(rows, result.violation_count, indent=4)
    return Text("\n".join([head, *lines]), style="red" if shown else "green")


def _last_line(report: VerifyReport) -> RenderableType:
    count = report.violation_count
    text = f"{count:,} violation" if count == 1 else f"{count:,} violations"
    return Text(
        f"{text}{_business_count(report.business)}",
        style="bold green" if report.is_clean else "bold red",
    )


def _business_count(business: BusinessReport | None) -> str:
    if business is None:
        return ""
    faults = ", ".join(f"{fault.value} {n:,}" for fault, n in business.fault_counts.items())
    by_fault = f" ({faults})" if faults else ""
    return f"; {business.violation_count:,} between messages and local transactions{by_fault}"
