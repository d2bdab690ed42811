"""The `txmq` command: make a store, serve it, look at it, decide by hand, verify it.

Spark is imported by `serve`, `demo` and `verify --engine` only, so the others start at once and run
anywhere.
"""

from __future__ import annotations

import logging
from time import sleep
from typing import Annotated, Any

import typer
from rich.live import Live
from typer.core import TyperGroup

from txmq.admin.operator import Operator, OperatorResult
from txmq.admin.status import Admin
from txmq.check.recheck import RecheckJob
from txmq.cli.dead_letters import add_consumer_commands
from txmq.cli.groups import add_group_commands
from txmq.cli.messages import add_message_commands
from txmq.cli.shared import (
    AsJson,
    ConfigFile,
    Location,
    console,
    list_console,
    location_and,
    print_json,
    print_result,
    say,
)
from txmq.cli.topics import add_topic_commands
from txmq.cli.verify import Verification, VerifyEngine
from txmq.cli.views import (
    comparison_view,
    discarded_view,
    life_view,
    maintenance_view,
    open_view,
    operator_view,
    recheck_view,
    status_view,
    verify_view,
)
from txmq.errors import TxmqError
from txmq.maintenance.service import Maintenance
from txmq.message.message import LocalTransactionState
from txmq.message.names import stored_name
from txmq.store.opening import create_store, open_store
from txmq.user_data.database_marker import MARKER_TABLE, marker_table_ddl
from txmq.verify import VerifyComparison, marker_places

EXIT_VIOLATIONS = 1
EXIT_ERROR = 2
EXIT_BUSINESS_VIOLATIONS = 3
SHOWN_TRANSACTIONS = 50
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"

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
_BUSINESS_HELP = (
    "Compare the messages of a producer group with its local transactions (I12), by their markers: "
    "GROUP=delta:LOCATION for a Delta table, GROUP=database:VARIABLE for a database whose URL that "
    "environment variable holds, with :TABLE behind it where the marker table is not txmq_marker. "
    "Once for each group. The plain engine compares, also with --engine spark or both."
)


class _CleanErrors(TyperGroup):
    """Shows every TxmqError as one line; with --debug, as the traceback it is."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit code 2 for a TxmqError."""
        try:
            return super().invoke(ctx)
        except TxmqError as error:
            if ctx.params.get("debug"):
                raise
            line = " ".join(str(error).split())
            console(stderr=True).print(line, style="red", markup=False, soft_wrap=True)
            raise typer.Exit(EXIT_ERROR) from error


app = typer.Typer(
    cls=_CleanErrors,
    add_completion=False,
    no_args_is_help=True,
    # Typer's own tracebacks show local variables, and those hold bodies.
    pretty_exceptions_enable=False,
)


discarded_app = typer.Typer(no_args_is_help=True, help="Transactions that nobody asks about.")
app.add_typer(discarded_app, name="discarded")
add_message_commands(app)
add_group_commands(app)
add_topic_commands(app)
add_consumer_commands(app)


def main() -> None:
    """The console entry point."""
    app(prog_name="txmq")


@app.callback()
def _root(
    *, debug: Annotated[bool, typer.Option(help="Show errors with their traceback.")] = False
) -> None:
    """Transactional messages for the lakehouse: visible if and only if the change took place."""
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format=_LOG_FORMAT)


@app.command()
def init(location: Location, config: ConfigFile = None) -> None:
    """Make a new store."""
    store = create_store(location, config)
    say(f"Store made at {store.location}. Next: txmq serve {store.location}")


@app.command()
def serve(
    location: Location,
    config: ConfigFile = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Do what is due, then end.")] = False,
    with_spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark", help="Without Spark: threads, no Java, a start at once."
        ),
    ] = True,
) -> None:
    """Run all services of a store until SIGTERM or Ctrl-C."""
    store = open_store(location, config)
    from txmq.broker import Broker, run_until_signal
    from txmq.local_spark.session import local_session

    logging.getLogger("txmq").setLevel(logging.INFO)
    broker = Broker(store, spark=local_session("txmq-broker") if with_spark else None)
    if once:
        say(str(broker.run_once()))
        return
    say(f"Serving {store.location}; Ctrl-C stops it.")
    run_until_signal(broker.start)


@app.command()
def recheck(location: Location, config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Ask the listeners of the settings about all that is due, once; for schedulers."""
    store = open_store(location, config)
    result = RecheckJob(store).run_once()
    print_result(result, recheck_view, as_json=as_json)


@app.command()
def maintenance(location: Location, config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Compact, clean and retire what nobody needs, once; for schedulers. `serve` does it too."""
    store = open_store(location, config)
    result = Maintenance(store).run_once()
    print_result(result, maintenance_view, as_json=as_json)
    if result.failed:
        raise typer.Exit(1)


@app.command()
def status(
    location: Location,
    *,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval-s", min=0.1, help="Seconds between two looks.")
    ] = 2.0,
) -> None:
    """Show how a store stands: open and ended transactions, topics, lag."""
    admin = Admin(open_store(location))
    if watch:
        _watch(admin, interval_s, as_json=as_json)
    elif as_json:
        print_json(admin.status().to_dict())
    else:
        console().print(status_view(admin.status()))


@app.command()
def show(
    location: Location, transaction_id: TransactionId = None, *, as_json: AsJson = False
) -> None:
    """Show everything about one transaction, in order of time. Bodies are never shown."""
    location, own_id = location_and(location, transaction_id, "TRANSACTION_ID")
    life = Admin(open_store(location)).transaction(own_id)
    print_result(life, life_view, as_json=as_json)


@app.command("open")
def list_open(
    location: Location,
    *,
    group: GroupFilter = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List the transactions without a final end, oldest first."""
    found = Operator(open_store(location)).open_transactions(producer_group=_stored(group))
    if as_json:
        print_json(_listed([one.to_dict() for one in found[:limit]], len(found)))
    else:
        list_console().print(open_view(found[: limit or SHOWN_TRANSACTIONS], len(found)))


@discarded_app.command("list")
def list_discarded(
    location: Location,
    *,
    group: GroupFilter = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List the transactions that were discarded, oldest first; `txmq resume` opens one again."""
    found = Operator(open_store(location)).discarded(producer_group=_stored(group))
    if as_json:
        print_json(_listed([one.to_dict() for one in found[:limit]], len(found)))
    else:
        list_console().print(discarded_view(found[: limit or SHOWN_TRANSACTIONS], len(found)))


@app.command()
def resolve(  # noqa: PLR0913 - the options of a command
    location: Location,
    transaction_id: TransactionId = None,
    *,
    reason: Why,
    commit: Annotated[bool, typer.Option("--commit", help="Its messages become visible.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Its messages are never shown.")
    ] = False,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """End a transaction by hand; without --apply only show what would follow."""
    if commit == rollback:
        raise typer.BadParameter("give one of both", param_hint="--commit / --rollback")
    end = LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK
    location, own_id = location_and(location, transaction_id, "TRANSACTION_ID")
    operator = Operator(open_store(location))
    _show_claim(operator.resolve(own_id, end, reason=reason, apply=apply), as_json=as_json)


@app.command()
def resume(
    location: Location,
    transaction_id: TransactionId = None,
    *,
    reason: Why,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Open a DISCARDED or INCOMPLETE transaction again; without --apply only show it."""
    location, own_id = location_and(location, transaction_id, "TRANSACTION_ID")
    operator = Operator(open_store(location))
    _show_claim(operator.resume(own_id, reason=reason, apply=apply), as_json=as_json)


@app.command()
def verify(  # noqa: PLR0913 - the options of a command
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
    engine: Annotated[
        VerifyEngine,
        typer.Option("--engine", help="Who reads: plain needs no Spark; both must agree."),
    ] = VerifyEngine.PLAIN,
    business: Annotated[
        list[str] | None, typer.Option("--business", metavar="GROUP=PLACE", help=_BUSINESS_HELP)
    ] = None,
) -> None:
    """Check every promise in docs/invariants.md.

    Exit code 1 if txmq breaks one or the engines differ; 3 if it keeps all of them, but a listener,
    a producer or an operator said what the local transaction does not; 2 if something cannot be
    read.
    """
    places = marker_places(business or [])
    store = open_store(location, config)
    checker = Verification(store, places, drained=drained)
    found = checker.both() if engine is VerifyEngine.BOTH else checker.one(engine)
    if as_json:
        print_json(found.to_dict())
    else:
        console().print(
            comparison_view(found) if isinstance(found, VerifyComparison) else verify_view(found)
        )
    if not found.is_txmq_clean:
        raise typer.Exit(EXIT_VIOLATIONS)
    if not found.is_business_clean:
        raise typer.Exit(EXIT_BUSINESS_VIOLATIONS)


@app.command()
def demo(  # noqa: PLR0913 - the options of a command
    location: Annotated[
        str | None, typer.Argument(help="A new folder; one below ./demo-store if left out.")
    ] = None,
    *,
    flights: Annotated[int, typer.Option(min=1, help="Departures.")] = 6_000,
    seed: Annotated[int, typer.Option(help="The same one gives the same story.")] = 13,
    dispatchers: Annotated[int, typer.Option(min=1, help="Processes that send.")] = 3,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of the day.")] = 60.0,
    kills: Annotated[int, typer.Option(min=0, help="Dispatchers that get kill -9.")] = 12,
    broker_kills: Annotated[int, typer.Option(min=0, help="Times the broker gets it.")] = 1,
    lose_checkpoints: Annotated[
        bool, typer.Option("--lose-checkpoints", help="Delete all checkpoints in between.")
    ] = False,
) -> None:
    """Run a day of departures with kill -9 in between, and check the books at its end."""
    from txmq.demo.run import main as run_demo

    code = run_demo(
        location,
        flights=flights,
        seed=seed,
        dispatchers=dispatchers,
        seconds=seconds,
        kills=kills,
        broker_kills=broker_kills,
        lose_checkpoints=lose_checkpoints,
    )
    raise typer.Exit(code)


@app.command("marker-table")
def marker_table(
    dialect: Annotated[
        str, typer.Argument(help="postgresql, mysql (MariaDB too) or sqlite.", show_default=False)
    ],
    table: Annotated[str, typer.Option("--table", help="Its name.")] = MARKER_TABLE,
) -> None:
    """Print the statement that makes the marker table of a DatabaseListener."""
    typer.echo(f"{marker_table_ddl(dialect, table)};")


def _watch(admin: Admin, interval_s: float, *, as_json: bool) -> None:
    try:
        if as_json:
            while True:
                print_json(admin.status().to_dict(), indent=None)
                sleep(interval_s)
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(status_view(admin.status()), refresh=True)
                sleep(interval_s)
    except KeyboardInterrupt:
        return


def _show_claim(result: OperatorResult, *, as_json: bool) -> None:
    print_result(result, operator_view, as_json=as_json)


def _stored(group: str | None) -> str | None:
    return None if group is None else stored_name(group)


def _listed(transactions: list[dict[str, Any]], total: int) -> dict[str, Any]:
    return {"total": total, "transactions": transactions}
