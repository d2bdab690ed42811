"""Real database servers for tests: Debian's packages, a folder and a free port for each."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from sqlalchemy import create_engine

from tests.kit.s3 import free_port

PASSWORD = "correct horse"  # noqa: S105 - of a server that lives as long as a test
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
_POSTGRES_FOLDERS = "/usr/lib/postgresql"


@dataclass(frozen=True)
class Server:
    """A server that runs; `connect` opens a new DB-API connection."""

    dialect: str
    port: int
    user: str
    process: subprocess.Popen[bytes]

    def connect(self, password: str = PASSWORD) -> Any:
        if self.dialect == "postgresql":
            return psycopg.connect(
                host=HOST, port=self.port, user=self.user, password=password, dbname="postgres"
            )
        return pymysql.connect(
            host=HOST, port=self.port, user=self.user, password=password, database="test"
        )

    def url(self, password: str = PASSWORD) -> str:
        """For SQLAlchemy."""
        place = f"{self.user}:{password.replace(' ', '%20')}@{HOST}:{self.port}"
        if self.dialect == "postgresql":
            return f"postgresql+psycopg://{place}/postgres"
        return f"mysql+pymysql://{place}/test"


def postgres_folder() -> str | None:
    """Where initdb and postgres are, or None."""
    found = shutil.which("initdb")
    if found:
        return str(Path(found).parent)
    folders = sorted(Path(_POSTGRES_FOLDERS).glob("*/bin")) if os.name == "posix" else []
    return str(folders[-1]) if folders else None


def has_mariadb() -> bool:
    return shutil.which("mariadbd") is not None and shutil.which("mariadb-install-db") is not None


@contextmanager
def running_postgres() -> Iterator[Server]:
    """A server without fsync: what is tested here is not the disk."""
    programs = postgres_folder()
    assert programs is not None
    with server_folder("postgres") as (folder, run_as):
        secret = folder / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        shutil.chown(secret, run_as) if run_as else None
        data, port = folder / "data", free_port()
        initdb = [f"{programs}/initdb", "-D", str(data), "-U", "owner", "-A", "scram-sha-256",
                  "--no-sync", f"--pwfile={secret}"]  # fmt: skip
        checked(as_user(run_as, initdb))
        serve = [f"{programs}/postgres", "-D", str(data), "-p", str(port), "-h", HOST, "-k",
                 str(folder), "-c", "fsync=off", "-c", "max_connections=50"]  # fmt: skip
        with running(as_user(run_as, serve), folder) as process:
            yield ready(Server("postgresql", port, "owner", process))


@contextmanager
def running_mariadb() -> Iterator[Server]:
    with server_folder("mysql") as (folder, run_as):
        data, port = folder / "data", free_port()
        user = [f"--user={run_as}"] if run_as else []
        checked(["mariadb-install-db", "--no-defaults", f"--datadir={data}", *user,
                 "--auth-root-authentication-method=normal", "--skip-test-db"])  # fmt: skip
        init = folder / "init.sql"
        init.write_text(
            "CREATE DATABASE IF NOT EXISTS test;\n"
            f"CREATE USER IF NOT EXISTS 'owner'@'%' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON *.* TO 'owner'@'%';\n",
            encoding="utf-8",
        )
        shutil.chown(init, run_as) if run_as else None
        serve = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}", *user,
                 f"--bind-address={HOST}", f"--socket={folder}/socket", f"--init-file={init}",
                 "--innodb-flush-log-at-trx-commit=0", "--max-allowed-packet=64M",
                 f"--pid-file={folder}/pid", "--skip-name-resolve"]  # fmt: skip
        with running(serve, folder) as process:
            yield ready(Server("mysql", port, "owner", process))


@contextmanager
def server_folder(account: str) -> Iterator[tuple[Path, str | None]]:
    """A folder, and whose it is where we are root: servers refuse to run as root."""
    run_as = account if os.geteuid() == 0 and has_account(account) else None
    folder = Path(tempfile.mkdtemp(prefix=f"txmq-{account}-"))
    try:
        if run_as:
            shutil.chown(folder, run_as)
        yield folder, run_as
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def has_account(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())


def as_user(account: str | None, command: Sequence[str]) -> list[str]:
    return [*(["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups"]
              if account else []), *command]  # fmt: skip


def checked(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd="/")


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with folder.joinpath("log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ready(server: Server) -> Server:
    """The server, once it answers."""
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.connect().close()
        except (psycopg.Error, pymysql.Error):
            assert server.process.poll() is None, "the server ended"
            assert time.monotonic() < give_up_s, "the server does not answer"
            time.sleep(0.05)
        else:
            return server


STARTS: dict[str, Callable[[], Any]] = {"postgresql": running_postgres, "mysql": running_mariadb}
MISSING = {
    "postgresql": "no Postgres here: install Debian's package postgresql",
    "mysql": "no MariaDB here: install Debian's package mariadb-server",
}


def missing(dialect: str) -> str | None:
    """Why there is no server of this kind, or None."""
    is_there = postgres_folder() if dialect == "postgresql" else has_mariadb()
    return None if is_there else MISSING[dialect]


KINDS = ("postgresql", "postgresql by SQLAlchemy", "mysql", "mysql by SQLAlchemy", "sqlite",
         "sqlite by SQLAlchemy")  # fmt: skip


@dataclass(frozen=True)
class Database:
    """One kind of database and of driver; `connect` opens a new connection."""

    connect: Callable[[], Any]
    parameter: str
    by_sqlalchemy: bool

    @property
    def is_sqlite(self) -> bool:
        return self.parameter == "?"

    def run(self, connection: Any, statement: str, *values: Any) -> Any:
        text = statement.replace("?", self.parameter)
        if self.by_sqlalchemy:
            return connection.exec_driver_sql(text, values)
        cursor = connection.cursor()
        cursor.execute(text, values)
        return cursor


@contextmanager
def database(kind: str, servers: Callable[[str], Server], file: Path) -> Iterator[Database]:
    """A database of one of KINDS; SQLite's is `file`."""
    dialect, _, by = kind.partition(" by ")
    if dialect == "sqlite":
        url, connect = f"sqlite:///{file}", lambda: sqlite3.connect(file)
    else:
        server = servers(dialect)
        url, connect = server.url(), server.connect
    engine = create_engine(url) if by else None
    parameter = "?" if dialect == "sqlite" else "%s"
    yield Database(engine.connect if engine else connect, parameter, bool(by))
    if engine:
        engine.dispose()
