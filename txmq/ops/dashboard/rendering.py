"""What pages are made of: HTML of templates, words for values, charts, commands to copy.

Everything that others wrote is escaped, and shown by printable characters.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import floor, log10
from sys import float_info
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from txmq.errors import EnvironmentProblemError, TopicBehindError, step_for_extra
from txmq.ground import amounts
from txmq.ground.printable import printable
from txmq.message.lifecycle import TransactionState
from txmq.message.names import namespace_of, shown_name, unwrapped

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
# So many first characters of a long id are shown.
ID_SHOWN = 13
# What was not measured, or is not there.
NOTHING = "–"  # noqa: RUF001 - a dash of people
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
KIB = 1024
SELDOM, WHOLE = 0.1, 100
WIDTH, HEIGHT = 600.0, 120.0
SPARK_WIDTH, SPARK_HEIGHT = 120.0, 28.0
# Of fewer values nothing is drawn.
LEAST = 2
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
# Stands in a command where a person writes the reason.
WHY = "WHY"
# These have no dry run.
_AT_ONCE = frozenset({"recheck", "maintenance", "serve"})

# A moment in seconds, and the value then; None where nothing was measured.
Point = tuple[float, float | None]


class Pages:
    """The templates of all pages.

    Raises: EnvironmentProblemError where Jinja2 is not installed.
    """

    version = ""

    def __init__(self, location: str, *, show_bodies: bool = False) -> None:
        """Load nothing yet."""
        self._environment = _environment()
        self._common = {"location": location, "show_bodies": show_bodies}

    def html(self, template: str, content: Mapping[str, Any]) -> str:
        """Render a page."""
        place = PARENTS.get(template, template)
        loaded = self._environment.get_template(f"{template}.html")
        return loaded.render({**self._common, "version": self.version, "place": place, **content})


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        problem = "the dashboard needs the package jinja2"
        raise EnvironmentProblemError(problem, step_for_extra("dashboard")) from error
    environment = Environment(
        loader=PackageLoader("txmq.ops.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": moment, "clock": clock_time, "duration": duration,
        "count": count, "rate": rate, "size": size, "hours": hours,
        "name": shown_name, "path": lambda text: quote(str(text), safe=""), "value": value,
        "short_id": short_id, "detail": detail, "svg": svg, "iso": iso,
    }  # fmt: skip
    environment.globals |= {"counted": amounts.counted, "pages": PAGES}
    return environment


def shown(text: Any) -> Any:
    """Return what a page shows for a value: nothing for None, and only printable characters."""
    if text is None:
        return ""
    if isinstance(text, str) and not hasattr(text, "__html__"):
        return printable(text)
    return text


def value(item: Any, name: str = "") -> str:
    """Write a detail of an event; its name has its unit."""
    if name.endswith("_s"):
        return duration(item)
    if name.endswith("_bytes"):
        return size(item)
    match item:
        case datetime():
            text = moment(item)
        case bool():
            text = "yes" if item else "no"
        case int():
            text = count(item)
        case list() | tuple():
            text = ", ".join(map(value, item))
        case _:
            text = str(item)
    return text


def detail(name: str) -> str:
    """Name a detail without its unit."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def short_id(text: str) -> str:
    """Shorten an id to what tells it from its neighbours; a text that is no id stays whole."""
    return text if len(text) <= ID_SHOWN * 2 else f"{text[:ID_SHOWN]}…{text[-5:]}"


def svg(drawn: Chart | str) -> Any:
    """Mark a chart of this file as HTML: the only text that is not escaped again."""
    from markupsafe import Markup

    return Markup(drawn.svg if isinstance(drawn, Chart) else drawn)  # noqa: S704 - of numbers


def iso(at: datetime) -> str:
    """Write a time for machines."""
    return at.astimezone(UTC).isoformat(timespec="seconds")


# --- words for values


def moment(at: datetime | None) -> str:
    """Write a date and time, in UTC and saying so."""
    return NOTHING if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock_time(at_s: float) -> str:
    """Write the time of day of seconds since 1970, in UTC and saying so."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S UTC")


def duration(seconds: float | None) -> str:
    """Write a length of time with its two largest units: 3 d 4 h, 42 s, 27 ms."""
    return NOTHING if seconds is None else amounts.duration(seconds)


def count(number: int | None) -> str:
    """Write a whole number with commas."""
    return NOTHING if number is None else f"{number:,}"


def rate(per_s: float | None) -> str:
    """Write how often in a second; seldom things in a minute or an hour."""
    if per_s is None:
        return NOTHING
    if per_s <= 0:
        return "0/s"
    if per_s >= SELDOM:
        return f"{_three_digits(per_s)}/s"
    if per_s * 60 >= SELDOM:
        return f"{_three_digits(per_s * 60)}/min"
    return f"{_three_digits(per_s * 3600)}/h"


def size(size_bytes: int) -> str:
    """Write a number of bytes with a unit of 1024."""
    value, place = float(size_bytes), 0
    while value >= KIB and place < len(_SIZES) - 1:
        value, place = value / KIB, place + 1
    return f"{size_bytes} B" if place == 0 else f"{value:.1f} {_SIZES[place]}"


def hours(reserved_h: float | None) -> str:
    """Write how long messages are kept."""
    return "for ever" if reserved_h is None else duration(reserved_h * 3600)


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= WHOLE else f"{value:.3g}"


# --- charts


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, by its name."""

    name: str
    points: Sequence[Point]

    @property
    def last(self) -> float | None:
        """The newest value that was measured."""
        return next((value for _, value in reversed(self.points) if value is not None), None)


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart, and the numbers at the ends of its axes."""

    svg: str
    top: float
    begin_s: float
    end_s: float


def chart(lines: Sequence[Line], label: str) -> Chart | None:
    """Draw the lines over one another, from zero; None where there are not two moments.

    Args:
        lines: the first one is filled.
        label: what a reader hears who does not see it.
    """
    moments = sorted({at_s for line in lines for at_s, _ in line.points})
    values = [value for line in lines for _, value in line.points if value is not None]
    if len(moments) < LEAST or not values:
        return None
    begin_s, end_s, top = moments[0], moments[-1], nice_top(max(values))
    box = _Box(WIDTH, HEIGHT, begin_s, end_s, top)
    drawn = "".join(box.drawn(line.points, number) for number, line in enumerate(lines, 1))
    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH:g}" y1="{y:g}" y2="{y:g}"/>'
        for y in (0.5, HEIGHT / 2, HEIGHT - 0.5)
    )
    return Chart(_svg("chart", WIDTH, HEIGHT, grid + drawn, label), top, begin_s, end_s)


def sparkline(points: Sequence[Point]) -> str:
    """Draw a small line without axes; an empty text where there are not two values.

    It adds nothing to the number beside it, so nobody is read it out.
    """
    values = [value for _, value in points if value is not None]
    if len(values) < LEAST:
        return ""
    box = _Box(SPARK_WIDTH, SPARK_HEIGHT, points[0][0], points[-1][0], max(values) * 1.1 or 1.0)
    return _svg("spark", SPARK_WIDTH, SPARK_HEIGHT, box.drawn(points, 1), None)


def nice_top(highest: float) -> float:
    """Return the next round number above; 1 for nothing, or as good as nothing."""
    # Of less there is no power of ten.
    if highest < float_info.min:
        return 1.0
    size: float = 10.0 ** floor(log10(highest))
    return next(step * size for step in _NICE if step * size >= highest * 0.999)


@dataclass(frozen=True, slots=True)
class _Box:
    """Where values lie in a picture."""

    width: float
    height: float
    begin_s: float
    end_s: float
    top: float

    def drawn(self, points: Sequence[Point], number: int) -> str:
        """Draw a line and, below the first one, its area; a gap where nothing was measured."""
        parts = []
        for run in _runs(points):
            places = [self._place(at_s, value) for at_s, value in run]
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            if len(places) == 1:
                path += "h0.01"
            if number == 1 and len(places) > 1:
                ends = f"L{places[-1][0]:.1f} {self.height:g}L{places[0][0]:.1f} {self.height:g}Z"
                parts.append(f'<path class="area" d="{path}{ends}"/>')
            parts.append(f'<path class="line s{number}" d="{path}"/>')
        return "".join(parts)

    def _place(self, at_s: float, value: float) -> tuple[float, float]:
        length_s = self.end_s - self.begin_s or 1.0
        x = (at_s - self.begin_s) / length_s * self.width
        share = min(1.0, max(0.0, value / self.top))
        # The line is drawn inside the picture, not half beside it.
        return x, self.height - 1.5 - share * (self.height - 3.0)


def _runs(points: Sequence[Point]) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for at_s, value in points:
        if value is None:
            if run:
                yield run
            run = []
        else:
            run.append((at_s, value))
    if run:
        yield run


def _svg(kind: str, width: float, height: float, content: str, label: str | None) -> str:
    spoken = 'aria-hidden="true"' if label is None else f'role="img" aria-label="{escape(label)}"'
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" '
        f'focusable="false" {spoken}>{content}</svg>'
    )


# --- commands to copy


@dataclass(frozen=True, slots=True)
class Command:
    """A line for a shell, and what it does.

    Attributes:
        is_changing: whether it changes the store; without `--apply` it only shows what it would do.
        acts_at_once: whether it changes the store as it is copied.
    """

    purpose: str
    text: str
    is_changing: bool = False
    acts_at_once: bool = False


def of_transaction(
    location: str, transaction_id: str, state: TransactionState | None, *, is_set_aside: bool
) -> list[Command]:
    """List what can be done about a transaction in this state."""
    named = (location, transaction_id)
    if is_set_aside:
        purpose = "Give its unreadable messages up"
        return [txmq(purpose, "resolve", *named, "--give-up", is_changing=True)]
    commit = txmq("Commit it", "resolve", *named, "--commit", is_changing=True)
    rollback = txmq("Roll it back", "resolve", *named, "--rollback", is_changing=True)
    resume = txmq("Ask its listener again", "resume", *named, is_changing=True)
    of_state = {
        TransactionState.PENDING: [
            recheck(location), commit, rollback,
        ],
        TransactionState.DISCARDED: [resume],
        TransactionState.INCOMPLETE: [resume, rollback],
    }  # fmt: skip
    return of_state.get(state, []) if state else []


def of_delayed(location: str, message_id: str, stored_group: str) -> list[Command]:
    """List what can be done about a message that waits for its time."""
    namespace = namespace_of(stored_group)
    within = () if namespace is None else ("--namespace", namespace)
    purpose = "Whether it can be taken back; without --dry-run it is"
    group = unwrapped(stored_group)
    return [txmq(purpose, "recall", location, message_id, "--group", group, *within, "--dry-run")]


def of_topic(location: str, topic: str, *, parked: str | None) -> list[Command]:
    """List what can be done about a topic; `parked` is why it is parked, None if it is not."""
    read = txmq("Read it", "consume", location, topic, "--follow")
    settings = txmq("Its settings", "topics", "describe", location, topic)
    rebuild = txmq("Compare it with half and settled", "rebuild-topic", location, topic)
    if parked is None:
        return [read, settings, rebuild]
    if parked.startswith(TopicBehindError.__name__):
        return [rebuild, settings]
    # Its rows are all there: what keeps it from being written is elsewhere.
    return [txmq("Look for what ails it", "doctor", location), rebuild, settings]


def of_group(location: str, group: str, topics: list[str]) -> list[Command]:
    """List what can be done about a consumer group."""
    named = ("--group", group)
    resets = [
        txmq(f"Move it to the end of {topic}", "offsets", "reset", location, group,
             "--topic", topic, "--to", "last", is_changing=True, reason=None)
        for topic in topics[:1]
    ]  # fmt: skip
    return [
        txmq("Its lag by queue", "lag", location, *named),
        *resets,
        txmq("Its dead letters", "dead-letters", "list", location, *named),
    ]


def of_dead_letters(location: str, group: str) -> list[Command]:
    """Send all dead letters of a group again, or hide them."""
    named = (location, "--group", group, "--all")
    return [
        txmq("Send all of them again", "dead-letters", "replay", *named, is_changing=True),
        txmq("Hide all of them for good", "dead-letters", "purge", *named, is_changing=True),
    ]


def recheck(location: str) -> Command:
    """Ask the listeners, which without a settings file are live producers alone."""
    purpose = "Ask all due listeners now; --config FILE names those of a broker's settings file"
    return txmq(purpose, "recheck", location)


def txmq(purpose: str, *words: str, is_changing: bool = False, reason: str | None = WHY) -> Command:
    """Make a call of `txmq`; each word is quoted. Changes get a reason and wait for `--apply`."""
    why = ("--reason", reason) if is_changing and reason else ()
    text = " ".join(["txmq", *map(word, (*words, *why))])
    return Command(purpose, text, is_changing, words[0] in _AT_ONCE)


def word(text: str) -> str:
    """Quote a text as one word of a shell, made of printable characters alone.

    What a terminal could obey is written as escapes ($'…' of bash and zsh).
    """
    if printable(text) == text and text.isprintable():
        return shlex.quote(text)
    escaped = "".join(_escaped(character) for character in text)
    return f"$'{escaped}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
