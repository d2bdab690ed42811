"""What each role reads, writes and deletes, and the grants for it: the one place they come from.

`python -m tests.kit.grants` writes deploy/rights and the tables of docs/security.md anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER, PAGE = ROOT / "deploy" / "rights", ROOT / "docs" / "security.md"
BUCKET, PREFIX = "lake", "txmq"
GROUP, READERS, TOPIC = "<group>", "<consumer group>", "<topic>"
LOGS = ("half", "op", "settled", "topics", "state")
WHOLE = ("",)
# As the other tables of the pages.
NONE = "\u2013"


class Rights(NamedTuple):
    """The folders of a store that a role reads, writes, and deletes from; "" is the whole store."""

    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()


# Folders that a store has only once somebody needed them.
_MADE_LATE = ("clock", "renewals")
_BROKER = (*LOGS, *_MADE_LATE)
ROLES: Mapping[str, Rights] = {
    "producer": Rights(LOGS, ("half", "op", "renewals"), ("renewals",)),
    "producer that answers checks": Rights(
        (*LOGS, "clock"),
        ("half", "op", f"state/remote_{GROUP}", "clock", "renewals"),
        ("clock", "renewals"),
    ),
    "broker": Rights(WHOLE, _BROKER, _BROKER),
    "consumer": Rights(LOGS, ("half", "op", f"state/group_{READERS}")),
    "operator": Rights(WHOLE, ("op",)),
    "reader": Rights((f"topics/{TOPIC}",)),
    "reader of SQL": Rights(LOGS),
    "status": Rights(WHOLE),
}


def file_name(role: str) -> str:
    """The name of a role as files and users have it."""
    return role.replace(" ", "-")


def named(folder: str, names: Mapping[str, str]) -> str:
    """A folder with the names of groups and topics filled in."""
    for placeholder, name in names.items():
        folder = folder.replace(placeholder, name)
    return folder


# --- S3 ------------------------------------------------------------------------------------------


def s3_policy(
    rights: Rights,
    *,
    bucket: str = BUCKET,
    prefix: str = PREFIX,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A policy of IAM for a role."""

    def objects(folders: Iterable[str]) -> list[str]:
        paths = (named(f"{prefix}/{folder}".rstrip("/"), names or _EXAMPLES) for folder in folders)
        return [f"arn:aws:s3:::{bucket}/{path}/*" for path in paths]

    # Without it S3 answers 403 in place of 404 for a commit that is not there yet.
    statements = [_allowed("List", ["s3:ListBucket"], [f"arn:aws:s3:::{bucket}"])]
    for name, actions, folders in (
        ("Read", ["s3:GetObject"], rights.reads),
        ("Write", ["s3:PutObject", "s3:AbortMultipartUpload"], rights.writes),
        ("Delete", ["s3:DeleteObject"], rights.deletes),
    ):
        if folders:
            statements.append(_allowed(name, actions, objects(folders)))
    return {"Version": "2012-10-17", "Statement": statements}


_EXAMPLES = {GROUP: "orders", READERS: "billing", TOPIC: "order-paid"}


def _allowed(name: str, actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": resources}


# --- POSIX ---------------------------------------------------------------------------------------


def posix_commands(
    role: str, rights: Rights, *, store: str = "$STORE", names: Mapping[str, str] | None = None
) -> list[str]:
    """The commands that give a role's group its rights, for what is there and what comes."""
    group = f"txmq-{file_name(role)}"

    def given(access: str, folders: Iterable[str]) -> list[str]:
        paths = (named(folder, names or _EXAMPLES) for folder in folders)
        places = " ".join(f'"{store}/{path}"'.replace('/"', '"') for path in paths)
        both = f"g:{group}:{access},d:g:{group}:{access}"
        return [f"setfacl -R -m {both} {places}"] if places else []

    way = [
        "" if "/" not in folder else folder.partition("/")[0]
        for folder in rights.writes + rights.reads
    ]
    ways = sorted({"", *way})
    walked = " ".join(f'"{store}/{path}"'.replace('/"', '"') for path in ways)
    return [
        f"setfacl -m g:{group}:x {walked}",
        *given("rX", rights.reads),
        *given("rwX", rights.writes),
    ]


def posix_script() -> str:
    """The commands of all roles."""
    lines = [
        "# Grants by access control lists; made by `python -m tests.kit.grants`.",
        "# Run by the owner of the store; take the part of each role that you have.",
        "set -eu",
        "STORE=${1:?the folder of the store}",
    ]
    for role, rights in ROLES.items():
        made = [
            named(path, _EXAMPLES) for path in rights.writes if "/" in path or path in _MADE_LATE
        ]
        lines += ["", f"# {role}", *(f'mkdir -p "$STORE/{path}"' for path in made)]
        lines += posix_commands(role, rights)
    return "\n".join(lines) + "\n"


# --- files and pages -----------------------------------------------------------------------------


def files() -> dict[Path, str]:
    """Each file that is made, with its text."""
    policies = {
        FOLDER / f"s3-{file_name(role)}.json": json.dumps(s3_policy(rights), indent=2) + "\n"
        for role, rights in ROLES.items()
    }
    return {**policies, FOLDER / "posix-acl.sh": posix_script(), PAGE: page()}


def page() -> str:
    """docs/security.md with its table of roles."""
    head = "| role | reads | writes | deletes from |\n|---|---|---|---|\n"
    rows = [
        f"| {role} | {_cell(rights.reads)} | {_cell(rights.writes)} | {_cell(rights.deletes)} |\n"
        for role, rights in ROLES.items()
    ]
    table = re.compile(r"^\| role \|.*\n(\|.*\n)+", re.MULTILINE)
    return table.sub(lambda _: head + "".join(rows), PAGE.read_text("utf-8"), count=1)


def _cell(folders: tuple[str, ...]) -> str:
    if folders == WHOLE:
        return "everything"
    return ", ".join(f"`{folder}`" for folder in folders) or NONE


if __name__ == "__main__":
    for place, text in files().items():
        place.write_text(text, encoding="utf-8")
