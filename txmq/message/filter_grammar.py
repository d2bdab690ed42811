"""The two languages of filters: tags `A || B`, and SQL92 over properties (R105). Pure.

A text becomes a small tree of conditions, and only the tree is ever evaluated.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from txmq.errors import InvalidFilterError

SQL_PREFIX = "sql:"
ALL = "*"
TAGS = "TAGS"
MAX_FILTER_CHARACTERS = 8_192
MAX_DEPTH = 32
# Spark compiles each of them; texts in one IN are one.
MAX_COMPARISONS = 100
_OR = "||"
_KEYWORDS = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"])
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Each alternative begins with another character, so that no text takes more than one pass.
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<text>'(?:[^'\x00-\x1f\x7f]|'')*')
    | (?P<quoted>"[^"\x00-\x1f\x7f]+")
    | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<sign><>|<=|>=|[=<>(),+-])
    """,
    re.VERBOSE | re.ASCII,
)


class Comparison(enum.StrEnum):
    """How a property is compared with a literal."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="


_FLIPPED = {
    Comparison.GREATER: Comparison.LESS,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS_OR_EQUAL,
    Comparison.LESS: Comparison.GREATER,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER_OR_EQUAL,
}
_EQUALITIES = (Comparison.EQUAL, Comparison.NOT_EQUAL)
# bool comes first where they are told apart: it is an int in Python.
Literal = bool | float | str


@dataclass(frozen=True, slots=True)
class Always:
    """TRUE or FALSE for every message."""

    value: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a message has no such property."""

    name: str


@dataclass(frozen=True, slots=True)
class Compare:
    """A property against a literal, which says how the property's text is read."""

    name: str
    comparison: Comparison
    literal: Literal


@dataclass(frozen=True, slots=True)
class IsOneOf:
    """A property against several texts."""

    name: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT."""

    term: Condition


@dataclass(frozen=True, slots=True)
class AllOf:
    """AND over two or more terms."""

    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """OR over two or more terms."""

    terms: tuple[Condition, ...]


PropertyTest = IsNull | Compare | IsOneOf
Condition = Always | PropertyTest | Negation | AllOf | AnyOf


def parsed_tags(text: str) -> tuple[str, ...]:
    """The tags of `A || B`, each once; none for `*`. Raises: InvalidFilterError."""
    _check_text(text)
    control = _CONTROL.search(text)
    if control:
        raise InvalidFilterError(text, "must not hold control characters", control.start())
    if text.strip() == ALL:
        return ()
    return tuple(dict.fromkeys(_parts(text)))


def parsed_sql(expression: str) -> Condition:
    """The condition that an expression says. Raises: InvalidFilterError."""
    _check_text(expression)
    return _Parser(expression).parsed()


def _parts(text: str) -> Iterator[str]:
    position = 0
    for part in text.split(_OR):
        tag = part.strip()
        if not tag:
            raise InvalidFilterError(text, "has an empty part; write * for all tags", position)
        if tag == ALL:
            raise InvalidFilterError(text, "has * beside other tags; write it alone", position)
        if "|" in tag:
            raise InvalidFilterError(text, "has a single |; write || between tags", position)
        yield tag
        position += len(part) + len(_OR)


def _check_text(text: str) -> None:
    if len(text) > MAX_FILTER_CHARACTERS:
        problem = f"is {len(text):,} characters long, the limit is {MAX_FILTER_CHARACTERS:,}"
        raise InvalidFilterError(text, problem, MAX_FILTER_CHARACTERS)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = "is not valid Unicode (a lone surrogate)"
        raise InvalidFilterError(text, problem, error.start) from None


# --- tokens ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    """A word of the expression; `kind` is a group of _TOKEN, `word` or `end`."""

    kind: str
    text: str
    position: int


def _tokens(expression: str) -> Iterator[_Token]:
    position = 0
    while position < len(expression):
        found = _TOKEN.match(expression, position)
        if found is None:
            raise InvalidFilterError(expression, _unreadable(expression[position]), position)
        if found.lastgroup != "space":
            yield _token(str(found.lastgroup), found[0], position)
        position = found.end()
    yield _Token("end", "", position)


def _token(kind: str, text: str, position: int) -> _Token:
    if kind == "name" and text.upper() in _KEYWORDS:
        return _Token("word", text.upper(), position)
    if kind == "quoted":
        return _Token("name", text[1:-1], position)
    return _Token(kind, text, position)


def _unreadable(character: str) -> str:
    if character in "'\"":
        return "has a quote that is not closed, or closes over nothing or a control character"
    return "has a character that no filter needs here"


# --- the parser -----------------------------------------------------------------------------------


class _Parser:
    """Recursive descent, bounded: or < and < not < comparison."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = list(_tokens(expression))
        self._place = 0
        self._comparisons = 0

    def parsed(self) -> Condition:
        condition = self._or(0)
        if self._now.kind != "end":
            self._refuse("goes on where AND, OR or the end was expected")
        return condition

    # --- levels ------------------------------------------------------------------------------

    def _or(self, depth: int) -> Condition:
        terms = [self._and(depth)]
        while self._took("word", "OR"):
            terms.append(self._and(depth))
        return terms[0] if len(terms) == 1 else AnyOf(tuple(terms))

    def _and(self, depth: int) -> Condition:
        terms = [self._not(depth)]
        while self._took("word", "AND"):
            terms.append(self._not(depth))
        return terms[0] if len(terms) == 1 else AllOf(tuple(terms))

    def _not(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            self._refuse(f"is nested more than {MAX_DEPTH} deep")
        if self._took("word", "NOT"):
            return Negation(self._not(depth + 1))
        if self._took("sign", "("):
            condition = self._or(depth + 1)
            self._need("sign", ")")
            return condition
        return self._counted()

    def _counted(self) -> Condition:
        self._count(1)
        return self._of_name(self._next().text) if self._now.kind == "name" else self._of_literal()

    def _count(self, comparisons: int) -> None:
        self._comparisons += comparisons
        if self._comparisons > MAX_COMPARISONS:
            self._refuse(f"has more than {MAX_COMPARISONS} comparisons")

    # --- one comparison ----------------------------------------------------------------------

    def _of_literal(self) -> Condition:
        position, literal = self._now.position, self._literal()
        comparison = self._comparison()
        if comparison is None:
            if isinstance(literal, bool):
                return Always(literal)
            self._refuse("needs a comparison after a literal")
        if self._now.kind != "name":
            self._refuse("needs a property on one side of a comparison")
        name = self._next().text
        return self._compare(name, _FLIPPED.get(comparison, comparison), literal, position)

    def _of_name(self, name: str) -> Condition:
        comparison = self._comparison()
        if comparison is not None:
            position = self._now.position
            return self._compare(name, comparison, self._literal(), position)
        if self._took("word", "IS"):
            is_not = self._took("word", "NOT")
            self._need("word", "NULL")
            return Negation(IsNull(name)) if is_not else IsNull(name)
        is_not = self._took("word", "NOT")
        condition = self._range_or_list(name)
        return Negation(condition) if is_not else condition

    def _range_or_list(self, name: str) -> Condition:
        if self._took("word", "BETWEEN"):
            return self._range(name)
        if not self._took("word", "IN"):
            self._refuse("needs a comparison, BETWEEN, IN or IS after a property")
        return _one_of(name, self._list())

    def _range(self, name: str) -> Condition:
        low_at, low = self._now.position, self._literal()
        self._need("word", "AND")
        high_at, high = self._now.position, self._literal()
        at_least = self._compare(name, Comparison.GREATER_OR_EQUAL, low, low_at)
        return AllOf((at_least, self._compare(name, Comparison.LESS_OR_EQUAL, high, high_at)))

    def _list(self) -> list[Literal]:
        self._need("sign", "(")
        found = [self._literal()]
        while self._took("sign", ","):
            self._count(int(self._now.kind != "text"))
            found.append(self._literal())
        self._need("sign", ")")
        return found

    def _compare(
        self, name: str, comparison: Comparison, literal: Literal, position: int
    ) -> Compare:
        if isinstance(literal, bool) and comparison not in _EQUALITIES:
            problem = "compares with TRUE or FALSE, which have no order; use = or <>"
            raise InvalidFilterError(self._expression, problem, position)
        return Compare(name, comparison, literal)

    # --- words -------------------------------------------------------------------------------

    def _comparison(self) -> Comparison | None:
        is_one = self._now.kind == "sign" and self._now.text in set(Comparison)
        return Comparison(self._next().text) if is_one else None

    def _literal(self) -> Literal:
        token = self._now
        if token.kind == "text":
            return self._next().text[1:-1].replace("''", "'")
        if token.kind == "word" and token.text in ("TRUE", "FALSE"):
            return self._next().text == "TRUE"
        if token.text in ("+", "-"):
            self._next()
            return -self._number() if token.text == "-" else self._number()
        return self._number()

    def _number(self) -> float:
        if self._now.kind != "number":
            self._refuse("needs a number, a 'text', TRUE or FALSE")
        number = float(self._now.text)
        if not math.isfinite(number):
            self._refuse("has a number that is too large")
        self._next()
        return number

    @property
    def _now(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        token = self._now
        self._place += 1
        return token

    def _took(self, kind: str, text: str) -> bool:
        is_it = (self._now.kind, self._now.text) == (kind, text)
        self._place += is_it
        return is_it

    def _need(self, kind: str, text: str) -> None:
        if not self._took(kind, text):
            self._refuse(f"needs {text}")

    def _refuse(self, problem: str) -> NoReturn:
        raise InvalidFilterError(self._expression, problem, self._now.position)


def _one_of(name: str, literals: Iterable[Literal]) -> Condition:
    several = list(literals)
    texts = tuple(dict.fromkeys(each for each in several if isinstance(each, str)))
    others = [each for each in several if not isinstance(each, str)]
    terms: list[Condition] = [IsOneOf(name, texts)] if texts else []
    terms += [Compare(name, Comparison.EQUAL, each) for each in others]
    return terms[0] if len(terms) == 1 else AnyOf(tuple(terms))
