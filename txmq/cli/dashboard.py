"""`txmq dashboard` shows a store in a browser."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from txmq.cli.shared import ConfigFile, Location, say
from txmq.store.opening import open_store

FilePath = str | None


def add_dashboard_command(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(dashboard)


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
    from txmq.broker import run_until_signal
    from txmq.dashboard.service import Dashboard, DashboardEndpoint, DashboardHandle

    endpoint = DashboardEndpoint(address, certificate, key, authority)
    store = open_store(location, config)
    if context.obj is None:
        logging.getLogger("txmq").setLevel(logging.WARNING)
    shown = Dashboard(store, endpoint, show_bodies=show_bodies)

    def start() -> DashboardHandle:
        handle = shown.start()
        say(f"Dashboard of {store.location} at {handle.address}; Ctrl-C stops it.")
        return handle

    run_until_signal(start)
