"""HTML of templates: everything that others wrote is escaped, and shown by printable characters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from txmq.dashboard import words
from txmq.dashboard.charts import Chart
from txmq.errors import EnvironmentProblemError
from txmq.message.names import shown_name
from txmq.printable import printable

if TYPE_CHECKING:
    from jinja2 import Environment

# Titles and paths of the pages in the navigation.
PAGES = (
    ("overview", "/", "Overview"),
    ("transactions", "/transactions", "Transactions"),
    ("topics", "/topics", "Topics"),
    ("groups", "/groups", "Groups"),
    ("dead-letters", "/dead-letters", "Dead letters"),
    ("delayed", "/delayed", "Delayed"),
    ("search", "/search", "Search"),
)
# Under which entry of the navigation a page is.
PARENTS = {
    "transaction": "transactions", "message": "search", "topic": "topics", "group": "groups",
    "letters": "dead-letters",
}  # fmt: skip
ID_SHOWN = 13


class Pages:
    """Templates of this room.

    Raises: EnvironmentProblemError where Jinja2 is not installed.
    """

    version = ""

    def __init__(self, location: str, *, show_bodies: bool = False) -> None:
        """Load nothing yet."""
        self._environment = _environment()
        self._common = {"location": location, "show_bodies": show_bodies}

    def html(self, template: str, content: Mapping[str, Any]) -> str:
        """A page."""
        place = PARENTS.get(template, template)
        loaded = self._environment.get_template(f"{template}.html")
        return loaded.render({**self._common, "version": self.version, "place": place, **content})


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        problem = "the dashboard needs the package jinja2"
        raise EnvironmentProblemError(problem, "Run `pip install 'txmq[dashboard]'`") from error
    made = Environment(
        loader=PackageLoader("txmq.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "moment": words.moment, "clock": words.clock_time, "duration": words.duration,
        "count": words.count, "rate": words.rate, "size": words.size, "hours": words.hours,
        "name": shown_name, "path": lambda text: quote(str(text), safe=""), "value": value,
        "short_id": short_id, "detail": detail, "svg": svg, "iso": iso,
    }  # fmt: skip
    made.globals |= {"counted": words.counted, "pages": PAGES}
    return made


def shown(text: Any) -> Any:
    """What stands in a page for a value: nothing for None, and only characters that show."""
    if text is None:
        return ""
    if isinstance(text, str) and not hasattr(text, "__html__"):
        return printable(text)
    return text


def value(item: Any, name: str = "") -> str:
    """A detail of an event; its name has its unit."""
    if name.endswith("_s"):
        return words.duration(item)
    if name.endswith("_bytes"):
        return words.size(item)
    match item:
        case datetime():
            text = words.moment(item)
        case bool():
            text = "yes" if item else "no"
        case int():
            text = words.count(item)
        case list() | tuple():
            text = ", ".join(map(value, item))
        case _:
            text = str(item)
    return text


def detail(name: str) -> str:
    """The name of a detail without its unit."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def short_id(text: str) -> str:
    """The part of an id that tells it from its neighbours; all of a text that is no id."""
    return text if len(text) <= ID_SHOWN * 2 else f"{text[:ID_SHOWN]}…{text[-5:]}"


def svg(drawn: Chart | str) -> Any:
    """A chart that this room drew: the only text that is not escaped again."""
    from markupsafe import Markup

    return Markup(drawn.svg if isinstance(drawn, Chart) else drawn)  # noqa: S704 - of numbers


def iso(at: datetime) -> str:
    """A time for machines."""
    return at.astimezone(UTC).isoformat(timespec="seconds")
