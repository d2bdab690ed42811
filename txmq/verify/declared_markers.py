"""The places of the markers of local transactions, as the user declares them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txmq.errors import ConfigError

MARKER_TABLE = "txmq_marker"
FORMS = "GROUP=delta:LOCATION or GROUP=database:VARIABLE or GROUP=database:VARIABLE:TABLE"
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*([.%][A-Za-z0-9][A-Za-z0-9_-]*)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*:[^/@]*@|[?#].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DeltaMarkers:
    """The Delta table whose commits carry the markers.

    Attributes:
        location: a path or a URI.
        storage_options: for delta-rs; without them credentials come from the environment.
    """

    location: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigError without a location."""
        if not self.location:
            raise ConfigError(["business: a Delta table without a location"])

    def __str__(self) -> str:
        """Return it as it may be shown: without user, password and signature."""
        is_uri = "://" in self.location
        return f"delta:{_CREDENTIALS.sub('', self.location) if is_uri else self.location}"


@dataclass(frozen=True, slots=True)
class DatabaseMarkers:
    """The table of a database that holds the markers.

    Attributes:
        variable: the environment variable that holds the database's URL, as SQLAlchemy takes it.
        table: its name, with a schema and a dot in front at most.
    """

    variable: str
    table: str = MARKER_TABLE

    def __post_init__(self) -> None:
        """Raise ConfigError; what was given is not shown, for it may be the URL itself."""
        if _VARIABLE.fullmatch(self.variable) is None:
            raise ConfigError(["business: give the name of an environment variable, not its value"])
        if _TABLE.fullmatch(self.table) is None:
            rule = "letters, digits and _, with a schema and a dot in front at most"
            raise ConfigError([f"business: the marker table's name must be {rule}"])

    def __str__(self) -> str:
        """Return it as it may be shown."""
        return f"database:{self.variable}:{self.table}"


MarkerPlace = DeltaMarkers | DatabaseMarkers


def marker_places(texts: Iterable[str]) -> dict[str, MarkerPlace]:
    """Read what the command line says, by producer group; each text has one of FORMS.

    Raises: ConfigError.
    """
    places: dict[str, MarkerPlace] = {}
    for text in texts:
        group, place = _parsed(text)
        if group in places:
            raise ConfigError([f"--business: group {group} is named twice"])
        places[group] = place
    return places


def _parsed(text: str) -> tuple[str, MarkerPlace]:
    group, _, place = text.partition("=")
    kind, _, rest = place.partition(":")
    # What has another form is not shown: it may be a URL with a password.
    if _GROUP.fullmatch(group) and rest and kind == "delta":
        return _stored(group), DeltaMarkers(rest)
    if _GROUP.fullmatch(group) and rest and kind == "database":
        variable, _, table = rest.partition(":")
        return _stored(group), DatabaseMarkers(variable, table or MARKER_TABLE)
    raise ConfigError([f"--business: say {FORMS}"])


def _stored(group: str) -> str:
    """Turn `tenant%group` into the form that is stored, with a dot."""
    return group.replace("%", ".")
