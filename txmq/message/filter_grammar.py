"""The grammar of SQL92 filters (R105): lark reads a text, this module makes its conditions. Pure.

It loads lark; import it only where an SQL filter is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NoReturn

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from txmq.errors import InvalidFilterError
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
)

MAX_DEPTH = 32
# Spark compiles each comparison; all texts of one IN are one comparison.
MAX_COMPARISONS = 100

_GRAMMAR = r"""
    ?start: any_of
    ?any_of: all_of ("OR"i all_of)*
    ?all_of: term ("AND"i term)*
    ?term: "NOT"i term                                             -> negation
         | "(" any_of ")"                                          -> nested
         | boolean                                                 -> always
         | property COMPARISON literal                             -> compare
         | literal COMPARISON property                             -> compare_flipped
         | property "IS"i [NOT] "NULL"i                            -> is_null
         | property [NOT] "BETWEEN"i literal "AND"i literal        -> between
         | property [NOT] "IN"i "(" literal ("," literal)* ")"     -> is_in
    ?property: NAME | QUOTED_NAME
    ?literal: text | number | boolean
    text: TEXT
    number: [SIGN] NUMBER
    boolean: TRUE | FALSE

    NOT: "NOT"i
    TRUE: "TRUE"i
    FALSE: "FALSE"i
    COMPARISON: "=" | "<>" | "<=" | ">=" | "<" | ">"
    SIGN: "+" | "-"
    NUMBER: /([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?/
    TEXT: /'([^'\x00-\x1f\x7f]|'')*'/
    NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
    QUOTED_NAME: /"[^"\x00-\x1f\x7f]+"/
    %ignore /[ \t\r\n]+/
"""
# What errors call a terminal of the grammar; words such as AND are called by themselves.
_NAMES_OF_TERMINALS = {
    "NAME": "a property", "QUOTED_NAME": "a property", "NUMBER": "a number", "SIGN": "a number",
    "TEXT": "a 'text'", "COMPARISON": "a comparison (= <> > >= < <=)", "COMMA": "a comma",
    "LPAR": "an opening bracket", "RPAR": "a closing bracket", "$END": "the end",
}  # fmt: skip
_FLIPPED = {
    Comparison.GREATER: Comparison.LESS,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS_OR_EQUAL,
    Comparison.LESS: Comparison.GREATER,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER_OR_EQUAL,
}
_EQUALITIES = (Comparison.EQUAL, Comparison.NOT_EQUAL)


def parsed_sql(expression: str) -> Condition:
    """Parse an expression, in time and memory in proportion to its length.

    Raises: InvalidFilterError at the first fault of syntax; if there is none, at the first number
        that is too large, order of TRUE and FALSE, or limit that is exceeded.
    """
    condition: Condition = _Conditions(expression).of(_syntax_tree(expression))
    return condition


def _syntax_tree(expression: str) -> Tree[Token]:
    try:
        return _parser().parse(expression)
    except UnexpectedCharacters as error:
        problem, position = _unreadable(error.char), error.pos_in_stream
    except UnexpectedToken as error:
        is_end = error.token.type == "$END"
        problem = _needed(error.accepts)
        position = len(expression) if is_end else error.pos_in_stream
    raise InvalidFilterError(expression, problem, position or 0)


@cache
def _parser() -> Lark:
    # The basic lexer reserves the words AND, IN … everywhere. Without ASCII, "IN"i takes a
    # Turkish dotless i.
    return Lark(
        _GRAMMAR, parser="lalr", lexer="basic", g_regex_flags=re.ASCII, propagate_positions=True
    )


def _unreadable(character: str) -> str:
    if character in "'\"":
        return "has a quote that is not closed, or quotes nothing or a control character"
    return "has an unexpected character"


def _needed(terminals: Iterable[str]) -> str:
    names = {_NAMES_OF_TERMINALS.get(terminal, terminal) for terminal in terminals}
    *others, last = sorted(names)
    return f"needs {', '.join(others)} or {last}" if others else f"needs {last}"


class _Conditions:
    """Makes conditions of a syntax tree: one method for each rule, called with the rule's parts."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._depth = self._comparisons = 0

    def of(self, tree: Tree[Token]) -> Any:
        """Return the condition, or the literal, of a part of the syntax tree."""
        return getattr(self, tree.data)(*tree.children)

    # --- terms --------------------------------------------------------------------------------

    def any_of(self, *terms: Tree[Token]) -> Condition:
        return AnyOf(tuple(map(self.of, terms)))

    def all_of(self, *terms: Tree[Token]) -> Condition:
        return AllOf(tuple(map(self.of, terms)))

    def negation(self, term: Tree[Token]) -> Condition:
        return Negation(self.nested(term))

    def nested(self, term: Tree[Token]) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"is nested more than {MAX_DEPTH} deep", term.meta.start_pos)
        condition: Condition = self.of(term)
        self._depth -= 1
        return condition

    # --- comparisons --------------------------------------------------------------------------

    def always(self, boolean: Tree[Token]) -> Condition:
        self._count_comparison(boolean.meta.start_pos)
        return Always(self.of(boolean))

    def compare(self, name: Token, sign: Token, literal: Tree[Token]) -> Condition:
        self._count_comparison(name.start_pos)
        return self._compare(name, Comparison(sign), literal)

    def compare_flipped(self, literal: Tree[Token], sign: Token, name: Token) -> Condition:
        self._count_comparison(literal.meta.start_pos)
        comparison = Comparison(sign)
        return self._compare(name, _FLIPPED.get(comparison, comparison), literal)

    def is_null(self, name: Token, negated: Token | None) -> Condition:
        self._count_comparison(name.start_pos)
        return _negated_if(negated, IsNull(_written(name)))

    def between(
        self, name: Token, negated: Token | None, low: Tree[Token], high: Tree[Token]
    ) -> Condition:
        self._count_comparison(name.start_pos)
        at_least = self._compare(name, Comparison.GREATER_OR_EQUAL, low)
        at_most = self._compare(name, Comparison.LESS_OR_EQUAL, high)
        return _negated_if(negated, AllOf((at_least, at_most)))

    def is_in(
        self, name: Token, negated: Token | None, first: Tree[Token], *others: Tree[Token]
    ) -> Condition:
        self._count_comparison(name.start_pos)
        for literal in others:
            if literal.data != "text":
                self._count_comparison(literal.meta.start_pos)
        literals = [self.of(literal) for literal in (first, *others)]
        return _negated_if(negated, _one_of(_written(name), literals))

    # --- literals -----------------------------------------------------------------------------

    def text(self, quoted: Token) -> str:
        return quoted[1:-1].replace("''", "'")

    def number(self, sign: Token | None, digits: Token) -> float:
        number = float(digits)
        if not math.isfinite(number):
            self._refuse("has a number that is too large", digits.start_pos)
        return -number if sign == "-" else number

    def boolean(self, word: Token) -> bool:
        return word.type == "TRUE"

    # --- checks -------------------------------------------------------------------------------

    def _compare(self, name: Token, comparison: Comparison, literal: Tree[Token]) -> Compare:
        if literal.data == "boolean" and comparison not in _EQUALITIES:
            problem = "compares with TRUE or FALSE, which have no order; use = or <>"
            self._refuse(problem, literal.meta.start_pos)
        return Compare(_written(name), comparison, self.of(literal))

    def _count_comparison(self, position: int | None) -> None:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            self._refuse(f"has more than {MAX_COMPARISONS} comparisons", position)

    def _refuse(self, problem: str, position: int | None) -> NoReturn:
        raise InvalidFilterError(self._expression, problem, position or 0)


def _written(name: Token) -> str:
    return name[1:-1] if name.type == "QUOTED_NAME" else str(name)


def _negated_if(negated: Token | None, condition: Condition) -> Condition:
    return Negation(condition) if negated else condition


def _one_of(name: str, literals: Iterable[Literal]) -> Condition:
    """Compare with all texts by one test, and with numbers and booleans one by one."""
    several = list(literals)
    texts = tuple(dict.fromkeys(text for text in several if isinstance(text, str)))
    terms: list[Condition] = [IsOneOf(name, texts)] if texts else []
    terms += [
        Compare(name, Comparison.EQUAL, literal)
        for literal in several
        if not isinstance(literal, str)
    ]
    return terms[0] if len(terms) == 1 else AnyOf(tuple(terms))
