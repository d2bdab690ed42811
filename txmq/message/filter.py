"""Filters of messages, by tags (`A || B`) or by SQL92 over properties (R105).

A filter becomes a tree of conditions; Arrow and Spark evaluate only the tree, never its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import InvalidFilterError
from txmq.ground.columns import whole
from txmq.ground.sessions import spark_room
from txmq.message.conditions import (
    AllOf,
    Always,
    AnyOf,
    Compare,
    Comparison,
    Condition,
    IsNull,
    IsOneOf,
    Literal,
    Negation,
    PropertyTest,
)

if TYPE_CHECKING:
    from txmq.ground.sessions import Column

SQL_PREFIX = "sql:"
ALL = "*"
TAGS = "TAGS"
MAX_FILTER_CHARACTERS = 8_192
_OR = "||"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Bounded, so that every engine reads the same finite number.
NUMBER = r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?"
WHOLE_NUMBER = rf"^({NUMBER})\z"
_Compared = dict[Comparison, Callable[[Any, Any], Any]]
_ARROW: _Compared = {
    Comparison.EQUAL: pc.equal,
    Comparison.NOT_EQUAL: pc.not_equal,
    Comparison.GREATER: pc.greater,
    Comparison.GREATER_OR_EQUAL: pc.greater_equal,
    Comparison.LESS: pc.less,
    Comparison.LESS_OR_EQUAL: pc.less_equal,
}


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages of a topic a consumer wants; `parse_filter` makes it.

    In SQL every property is a text. A comparison with a number reads the text as a number (at most
    40 digits before and after the point, an exponent of two digits; a 64-bit float); a comparison
    with TRUE or FALSE reads it as one of these words, in any case. If the text cannot be read so,
    or the property is missing, the comparison is UNKNOWN. A message is wanted if the whole
    expression is TRUE: neither FALSE nor UNKNOWN.

    Attributes:
        text: the filter in its one spelling, which `parse_filter` reads again.
        condition: the tree that engines evaluate.
    """

    text: str
    condition: Condition

    @classmethod
    def tags(cls, text: str) -> MessageFilter:
        """Parse `*`, `A` or `A || B`: by exact text (R105). Raises: InvalidFilterError."""
        tags = _parsed_tags(_checked(text))
        if not tags:
            return cls(ALL, Always(value=True))
        return cls(" || ".join(tags), IsOneOf(TAGS, tags))

    @classmethod
    def sql(cls, expression: str) -> MessageFilter:
        """Parse SQL92 over properties: = <> > >= < <= BETWEEN IN IS NULL AND OR NOT and brackets.

        A property is compared with a number, a 'text', TRUE or FALSE; TAGS is the message's tag.
        Write names that are not plain words in double quotes: `"order-id"`. The first call loads
        the parser. Raises: InvalidFilterError.
        """
        from txmq.message.filter_grammar import parsed_sql

        stripped = _text(expression).strip()
        return cls(SQL_PREFIX + stripped, parsed_sql(_checked(stripped)))

    @property
    def is_all(self) -> bool:
        """Whether every message is wanted, so that no message has to be tested."""
        return self.condition == Always(value=True)

    def mask(self, rows: pa.Table) -> pa.Array:
        """Tell for each row whether it is wanted, never null; reads `tags` and `properties`."""
        return pc.fill_null(_ArrowMask(rows).of(self.condition), False)  # noqa: FBT003

    def column(self) -> Column:
        """Return the mask as a Spark column, never null, of functions: Spark parses no text."""
        column: Column = spark_room().column_of(self.condition)
        return column


def parse_filter(text: str | MessageFilter) -> MessageFilter:
    """Parse a filter: tags (`*`, `A`, `A || B`), or `sql:` and an SQL expression.

    Raises: InvalidFilterError with the position of the fault.

    Example:
        >>> parse_filter("paid||refunded").text
        'paid || refunded'
        >>> parse_filter("sql:amount > 100 AND region IN ('eu', 'us')").is_all
        False
    """
    if isinstance(text, MessageFilter):
        return text
    if not _text(text).startswith(SQL_PREFIX):
        return MessageFilter.tags(text)
    expression = text.removeprefix(SQL_PREFIX)
    try:
        return MessageFilter.sql(expression)
    except InvalidFilterError as error:
        # The parser counts from the first character that is not a space.
        skipped = len(SQL_PREFIX) + len(expression) - len(expression.lstrip())
        raise InvalidFilterError(text, error.problem, error.position + skipped) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidFilterError(value, f"must be a str, not {type(value).__name__}", 0)
    return value


def _checked(value: object) -> str:
    """Return a text that is short enough to read and can be encoded."""
    text = _text(value)
    if len(text) > MAX_FILTER_CHARACTERS:
        problem = f"is {len(text):,} characters long, the limit is {MAX_FILTER_CHARACTERS:,}"
        raise InvalidFilterError(text, problem, MAX_FILTER_CHARACTERS)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = "is not valid Unicode (a lone surrogate)"
        raise InvalidFilterError(text, problem, error.start) from None
    return text


# --- tags -----------------------------------------------------------------------------------------


def _parsed_tags(text: str) -> tuple[str, ...]:
    """Return the tags of `A || B`, each once; none for `*`."""
    control = _CONTROL.search(text)
    if control:
        raise InvalidFilterError(text, "must not hold control characters", control.start())
    if text.strip() == ALL:
        return ()
    return tuple(dict.fromkeys(_tags(text)))


def _tags(text: str) -> Iterator[str]:
    position = 0
    for alternative in text.split(_OR):
        tag = alternative.strip()
        if not tag:
            raise InvalidFilterError(text, "has an empty part; write * for all tags", position)
        if tag == ALL:
            raise InvalidFilterError(text, "has * beside other tags; write it alone", position)
        if "|" in tag:
            raise InvalidFilterError(text, "has a single |; write || between tags", position)
        yield tag
        position += len(alternative) + len(_OR)


# --- Arrow ----------------------------------------------------------------------------------------


class _ArrowMask:
    """Evaluates conditions over rows: true, false or null, as in SQL."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._texts: dict[str, pa.Array] = {}
        self._numbers: dict[str, pa.Array] = {}

    def of(self, condition: Condition) -> pa.Array:
        match condition:
            case Always(value):
                return pa.repeat(pa.scalar(value, pa.bool_()), self._rows.num_rows)
            case Negation(term):
                return pc.invert(self.of(term))
            case AllOf(terms):
                return reduce(pc.and_kleene, map(self.of, terms))
            case AnyOf(terms):
                return reduce(pc.or_kleene, map(self.of, terms))
            case _:
                return self._test(condition)

    def _test(self, test: PropertyTest) -> pa.Array:
        text = self._text(test.name)
        match test:
            case IsNull():
                return pc.is_null(text)
            case IsOneOf(_, texts):
                is_one = pc.is_in(text, value_set=pa.array(texts, pa.string()))
                return pc.if_else(pc.is_valid(text), is_one, pa.scalar(None, pa.bool_()))
            case Compare(name, comparison, literal):
                return _ARROW[comparison](self._read_as(name, literal), pa.scalar(literal))

    def _read_as(self, name: str, literal: Literal) -> pa.Array:
        if isinstance(literal, bool):
            return _booleans(self._text(name))
        return self._text(name) if isinstance(literal, str) else self._number(name)

    def _text(self, name: str) -> pa.Array:
        if name not in self._texts:
            self._texts[name] = _texts(self._rows, name)
        return self._texts[name]

    def _number(self, name: str) -> pa.Array:
        if name not in self._numbers:
            self._numbers[name] = _numbers(self._text(name))
        return self._numbers[name]


def _texts(rows: pa.Table, name: str) -> pa.Array:
    if name == TAGS:
        return whole(rows["tags"])
    # Of two entries with one name Spark takes the first too.
    return pc.map_lookup(whole(rows["properties"]), pa.scalar(name), "first")


def _numbers(texts: pa.Array) -> pa.Array:
    """Read each distinct text once, however many messages have it."""
    encoded = texts.dictionary_encode()
    return _parsed(encoded.dictionary).take(encoded.indices)


def _parsed(texts: pa.Array) -> pa.Array:
    is_number = pc.match_substring_regex(texts, WHOLE_NUMBER)
    written = pc.if_else(is_number, texts, pa.scalar(None, texts.type))
    # Arrow cannot read a number that begins with a plus.
    return pc.replace_substring_regex(written, r"^\+", "").cast(pa.float64())


def _booleans(texts: pa.Array) -> pa.Array:
    word = pc.ascii_lower(texts)
    is_word = pc.is_in(word, value_set=pa.array(["true", "false"], texts.type))
    return pc.if_else(is_word, pc.equal(word, "true"), pa.scalar(None, pa.bool_()))
