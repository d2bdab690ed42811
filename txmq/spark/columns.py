"""Conditions and digests as columns of Spark; made of functions, so Spark parses no text."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from txmq.message.codec import ERASED
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
from txmq.message.filter import TAGS, WHOLE_NUMBER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COMPARED: Mapping[Comparison, Callable[[Any, Any], Any]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_OR_EQUAL: operator.ge,
    Comparison.LESS: operator.lt,
    Comparison.LESS_OR_EQUAL: operator.le,
}


def column_of(condition: Condition) -> Column:
    """Return a condition of a filter as a column that is never null."""
    from pyspark.sql import functions as sql

    return sql.coalesce(_condition(condition), sql.lit(False))  # noqa: FBT003


def is_not_erased() -> Column:
    """Return the condition for rows that are not erased."""
    from pyspark.sql import functions as sql

    return sql.try_element_at(sql.col("properties"), sql.lit(ERASED)).isNull()


def digest_of(rows: DataFrame) -> str:
    """Tell rows from others: their number, and a sum of their hashes that no order changes.

    Rows of a topic are told by their ids alone, so no body is read. Reads: the rows, once.
    """
    from pyspark.sql import functions as sql

    names = ["message_id"] if "message_id" in rows.columns else rows.columns
    quoted = ["`{}`".format(name.replace("`", "``")) for name in names]
    # A map has no hash, and its text has.
    hashed = sql.xxhash64(*(sql.col(name).cast("string") for name in quoted))
    sums = rows.select(hashed.cast("decimal(38,0)").alias("hash"))
    count, total = sums.agg(sql.count("*"), sql.sum("hash")).collect()[0]
    return f"{count} rows {total or 0}"


def _condition(condition: Condition) -> Column:
    from pyspark.sql import functions as sql

    match condition:
        case Always(value):
            return sql.lit(value)
        case Negation(term):
            return ~_condition(term)
        case AllOf(terms):
            return reduce(lambda left, right: left & right, map(_condition, terms))
        case AnyOf(terms):
            return reduce(lambda left, right: left | right, map(_condition, terms))
        case _:
            return _test(condition)


def _test(test: PropertyTest) -> Column:
    from pyspark.sql import functions as sql

    match test:
        case IsNull(name):
            return _text(name).isNull()
        case IsOneOf(name, texts):
            return _text(name).isin(*texts)
        case Compare(name, comparison, literal):
            compared: Column = _COMPARED[comparison](_read_as(name, literal), sql.lit(literal))
            return compared


def _read_as(name: str, literal: Literal) -> Column:
    from pyspark.sql import functions as sql

    text = _text(name)
    if isinstance(literal, bool):
        word = sql.lower(text)
        return sql.when(word == "true", sql.lit(True)).when(word == "false", sql.lit(False))  # noqa: FBT003
    if isinstance(literal, str):
        return text
    return sql.when(text.rlike(WHOLE_NUMBER), text.try_cast("double"))


def _text(name: str) -> Column:
    from pyspark.sql import functions as sql

    if name == TAGS:
        return sql.col("tags")
    return sql.try_element_at(sql.col("properties"), sql.lit(name))
