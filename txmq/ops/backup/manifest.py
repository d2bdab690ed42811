"""The manifest of a backup: which version of each table it holds, and in which files.

It is written last. A backup without it is not finished, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from txmq.delta.folder import inside
from txmq.errors import BackupError, StoreFormatError
from txmq.ground.printable import printable

MANIFEST = "txmq-backup.json"
FORMAT = 1
_TAKE_ANOTHER = "take another backup"


class CopiedFile(NamedTuple):
    """A file of a backup, as it was when it was copied."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table of a backup; the paths of its files are relative to it."""

    table_id: str
    version: int
    schema_version: str
    files: Mapping[str, CopiedFile]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds.

    Attributes:
        txmq_version: of the txmq that made it.
        source: the location of the store.
        begun, ended: by the clock of the machine that made it, in ISO 8601.
        tables: by their paths in the store.
        missing: live files that the store itself lacked.
        faults: what the store itself had in a wrong order, such as a topic that went back.
    """

    txmq_version: str
    source: str
    begun: str
    ended: str
    tables: Mapping[str, CopiedTable]
    missing: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def files(self) -> Iterator[tuple[str, CopiedFile]]:
        """Yield all files, by their paths in the store."""
        for path, table in self.tables.items():
            for name, file in table.files.items():
                yield f"{path}/{name}", file

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for _, file in self.files())

    def to_json(self) -> bytes:
        """Write out the content of the file."""
        tables = {
            path: {
                "id": table.table_id,
                "version": table.version,
                "schema_version": table.schema_version,
                "files": [[name, *file] for name, file in table.files.items()],
            }
            for path, table in self.tables.items()
        }
        value = {
            "format": FORMAT,
            "txmq": self.txmq_version,
            "source": self.source,
            "begun": self.begun,
            "ended": self.ended,
            "missing": list(self.missing),
            "faults": list(self.faults),
            "files": sum(1 for _ in self.files()),
            "tables": tables,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, content: bytes, place: str) -> Manifest:
        """Read what `to_json` wrote.

        Raises: BackupError for a manifest that is damaged, or of a newer txmq.
        """
        try:
            value = json.loads(content)
            if value["format"] != FORMAT:
                problem = f"has format {printable(str(value['format']))}, this txmq reads {FORMAT}"
                raise BackupError(place, f"{problem}; use the txmq that made it, or a newer one")
            return cls._of(value)
        except (ValueError, KeyError, TypeError, AttributeError, StoreFormatError) as error:
            problem = f"its {MANIFEST} is damaged ({type(error).__name__}); {_TAKE_ANOTHER}"
            raise BackupError(place, problem) from error

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> Manifest:
        manifest = cls(
            str(value["txmq"]),
            str(value["source"]),
            str(value["begun"]),
            str(value["ended"]),
            {path: _table(path, table) for path, table in value["tables"].items()},
            tuple(map(str, value["missing"])),
            tuple(map(str, value["faults"])),
        )
        if sum(1 for _ in manifest.files()) != value["files"] or "op" not in manifest.tables:
            raise ValueError("not all files")
        return manifest


def _table(path: str, value: Mapping[str, Any]) -> CopiedTable:
    files = {}
    for name, size_bytes, sha256 in value["files"]:
        # A manifest is written by others, too.
        inside(f"{path}/{name}")
        files[name] = CopiedFile(int(size_bytes), str(sha256))
    return CopiedTable(str(value["id"]), int(value["version"]), str(value["schema_version"]), files)
