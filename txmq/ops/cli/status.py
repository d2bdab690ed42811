"""`txmq status`, `doctor`, `sql-views` and `dashboard`: look at a store."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from time import sleep
from typing import Annotated, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from txmq.ground.printable import printable
from txmq.message.names import shown_name
from txmq.ops.admin.doctor import Diagnosis, Doctor
from txmq.ops.admin.needs import Alert, Figures, Urgency, needs_of
from txmq.ops.admin.status import Admin, Lag, SetAsideStatus, Status
from txmq.ops.brokers import BrokerStatus
from txmq.ops.cli.shared import (
    AsJson,
    ConfigFile,
    Location,
    end_if_unusable,
    list_console,
    moment,
    pairs,
    print_json,
    say,
    show,
    titled_pairs,
)
from txmq.spark.sql_views import SqlEngine, sql_views
from txmq.store.store import open_store

SHOWN_SET_ASIDE = 20
SHOWN_BROKERS = 5

FilePath = str | None


def add_look_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(status)
    app.command()(doctor)
    app.command("sql-views")(print_sql_views)
    app.command()(dashboard)


# --- status


def status(
    location: Location,
    *,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval-s", min=0.1, help="Seconds between two looks.")
    ] = 2.0,
) -> None:
    """Show how a store stands: transactions, topics, lag, brokers.

    --watch ends with Ctrl-C, exit code 0; in a pipe it prints one report after the other.
    """
    admin = Admin(open_store(location))
    if watch:
        _watch(admin, interval_s, as_json=as_json)
    else:
        found = admin.status()
        show(found, _status_view, as_json=as_json)
        end_if_unusable(found.unusable)


def _watch(admin: Admin, interval_s: float, *, as_json: bool) -> None:
    """Look until Ctrl-C: a terminal shows the newest report in place, a pipe one after another."""
    shown = list_console()
    with suppress(KeyboardInterrupt):
        if as_json or not shown.is_terminal:
            _print_again_and_again(admin, interval_s, as_json=as_json)
        with Live(console=shown, auto_refresh=False) as live:
            while True:
                live.update(_status_view(admin.status()), refresh=True)
                sleep(interval_s)


def _print_again_and_again(admin: Admin, interval_s: float, *, as_json: bool) -> NoReturn:
    while True:
        if as_json:
            print_json(admin.status().to_dict(), indent=None)
        else:
            list_console().print(_status_view(admin.status()), Text())
        sys.stdout.flush()
        sleep(interval_s)


def _status_view(status: Status) -> RenderableType:
    messages = {shown_name(name): f"{count:,}" for name, count in status.messages.items()}
    parts: list[RenderableType] = [
        Text(f"{status.location} at {moment(status.at)}", style="bold"),
        titled_pairs("transactions", _transactions(status)),
        titled_pairs("visible messages", messages),
        titled_pairs("progress", _progress(status)),
        _brokers(status),
    ]
    if status.members:
        members = {shown_name(group): f"{count:,}" for group, count in status.members.items()}
        parts.append(titled_pairs("producers that answer checks", members))
    return Group(*parts, *_troubles(status), *_needs(status))


def _transactions(status: Status) -> dict[str, str]:
    oldest_s = status.oldest_open_half_age_s
    age = "" if oldest_s is None else f", the oldest {oldest_s:,.0f} s old"
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


def _brokers(status: Status) -> RenderableType:
    if status.brokers_problem is not None:
        text = f"the brokers cannot be read: {printable(status.brokers_problem)}"
        return Text(f"{text}; the next heartbeat of a broker replaces what it can", style="yellow")
    living = [broker for broker in status.brokers if not broker.is_gone]
    if not living:
        last = "".join(f"; {_broker(broker, status)}" for broker in status.brokers[:1])
        text = "no broker is known to run; what is committed waits for one (txmq serve)"
        return Text(f"{text}{last}", style="yellow")
    shown = status.brokers[:SHOWN_BROKERS]
    counts = Counter(broker.name for broker in shown)
    lines = {
        # Two of one name are told apart by their ids.
        broker.name if counts[broker.name] == 1 else f"{broker.name} {broker.broker_id}": _broker(
            broker, status
        )
        for broker in shown
    }
    more = len(status.brokers) - len(shown)
    return titled_pairs("brokers", {**lines, "and": f"{more:,} more"} if more else lines)


def _broker(broker: BrokerStatus, status: Status) -> str:
    ago_s, name = (status.at - broker.last_seen).total_seconds(), printable(broker.name)
    seen = f"seen {ago_s:,.0f} s ago"
    if broker.is_gone and ago_s < 0:
        return f"{name} says that it was seen at {moment(broker.last_seen)}, which is to come"
    if broker.is_gone:
        return f"{name} was {seen}, at {moment(broker.last_seen)}, and did not stop in order"
    return f"runs since {moment(broker.started)}, {seen}, txmq {broker.version}"


def _troubles(status: Status) -> Iterator[Text]:
    """Yield a line for each parked topic, set-aside transaction and unreadable file."""
    for parked in status.parked:
        where = f"topic {shown_name(parked.topic)} is parked from op version {parked.from_version}"
        since = f"since {moment(parked.since)}, {parked.attempts} attempts: {parked.reason}"
        yield Text(f"{where} {since}", style="red")
    for waiting in status.set_aside[:SHOWN_SET_ASIDE]:
        what = f"transaction {waiting.transaction_id} is set aside"
        yield Text(f"{what}: {_waiting(waiting)}", style="red")
    if len(status.set_aside) > SHOWN_SET_ASIDE:
        count = len(status.set_aside) - SHOWN_SET_ASIDE
        yield Text(f"and {count:,} more transactions are set aside", style="red")
    for file in status.unreadable:
        yield Text(f"half cannot be read: {file}", style="red")


def _waiting(waiting: SetAsideStatus) -> str:
    cure = (
        "it is given up with the next round of the publisher"
        if waiting.is_given_up
        else "restore the file, or give it up: txmq resolve ID --give-up"
    )
    return f"{waiting.problem}; {cure}"


def _needs(status: Status) -> Iterator[Text]:
    """Yield a line for each need, without those that have lines of their own in the view."""
    for need in needs_of(Figures.of(status)):
        if need.alert not in (Alert.TOPIC_PARKED, Alert.FILE_UNREADABLE):
            style = "red" if need.urgency is Urgency.NOW else "yellow"
            yield Text(f"{need.title}; next: {need.next_step}", style=style)


# --- doctor


def doctor(
    location: Location,
    config: ConfigFile = None,
    *,
    probes: Annotated[
        bool,
        typer.Option(
            "--probe", help="Also write a small file and remove it: rights, two writers, clock."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look for what needs a hand; loads nothing that the store names, and reads only.

    Exit code 1 if something was found. For example: txmq doctor /data/txmq --probe
    """
    diagnosis = Doctor(open_store(location, config)).examine(probes=probes)
    show(diagnosis, _diagnosis_view, as_json=as_json)
    if diagnosis.findings:
        raise typer.Exit(1)


def _diagnosis_view(diagnosis: Diagnosis) -> RenderableType:
    title = f"{diagnosis.location}, {diagnosis.tables:,} tables: "
    if not diagnosis.findings:
        return Text(f"{title}nothing found")
    parts: list[RenderableType] = [Text(f"{title}{len(diagnosis.findings):,} found", style="red")]
    for finding in diagnosis.findings:
        lines = {"problem": finding.problem, "next step": finding.next_step}
        parts += [Text(printable(finding.where), style="bold"), pairs(lines)]
    if diagnosis.ignored_settings:
        title = "The ignored settings, as lines of a settings file; read them before you use them:"
        parts += [Text(title), Text(diagnosis.ignored_settings)]
    return Group(*parts)


# --- the store in other programs


def print_sql_views(
    location: Location,
    *,
    engine: Annotated[
        SqlEngine, typer.Option("--engine", help="Who runs the statements.")
    ] = SqlEngine.DUCKDB,
    is_live: Annotated[
        bool,
        typer.Option(
            "--live", help="DuckDB's extension `delta` reads what is newest; else as of now."
        ),
    ] = False,
) -> None:
    """Print statements that make views: txmq_transactions, stuck, topic_lag, dead_letters.

    For example: txmq sql-views /data/txmq > views.sql, then `.read views.sql` in DuckDB.
    """
    statements = sql_views(open_store(location), engine, is_live=is_live)
    typer.echo(";\n\n".join([*statements.values(), ""]), nl=False)


def dashboard(  # noqa: PLR0913 - the options of a command
    context: typer.Context,
    location: Location,
    config: ConfigFile = None,
    *,
    address: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where a browser finds it.")
    ] = "127.0.0.1:8320",
    certificate: Annotated[
        FilePath, typer.Option("--certificate", metavar="FILE", help="TLS for it.")
    ] = None,
    key: Annotated[FilePath, typer.Option("--key", metavar="FILE", help="Its private key.")] = None,
    authority: Annotated[
        FilePath,
        typer.Option(
            "--client-authority",
            metavar="FILE",
            help="Whose clients may look; other addresses than this machine's own need it.",
        ),
    ] = None,
    show_bodies: Annotated[
        bool, typer.Option("--show-bodies", help="Show bodies on the pages of messages.")
    ] = False,
) -> None:
    """Show a store in a browser, read-only, until SIGTERM or Ctrl-C."""
    from txmq.ops.broker import run_until_signal
    from txmq.ops.dashboard.app import Dashboard, DashboardEndpoint, DashboardHandle

    endpoint = DashboardEndpoint(address, certificate, key, authority)
    store = open_store(location, config)
    if context.obj is None:
        logging.getLogger("txmq").setLevel(logging.WARNING)
    service = Dashboard(store, endpoint, show_bodies=show_bodies)

    def start() -> DashboardHandle:
        handle = service.start()
        say(f"Dashboard of {store.location} at {handle.address}; Ctrl-C stops it.")
        return handle

    run_until_signal(start)
