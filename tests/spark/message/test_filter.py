"""The Spark column of a filter says of each message what the Arrow mask says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.filters import NAMES, VALUES, Row, Written, expressions, table_of
from txmq.message.filter import MessageFilter, parse_filter
from txmq.message.filter_grammar import MAX_COMPARISONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "place INT, tags STRING, properties MAP<STRING, STRING>"
FEW = settings(max_examples=8, suppress_health_check=list(HealthCheck))


def all_kinds_of_rows() -> list[Row]:
    """Each value under each name, and many of them together."""
    chosen = random.Random(7)
    rows: list[Row] = [(None, None), ("A", ()), (None, (("a", None),))]
    for value in VALUES:
        rows += [(value, None), (None, (("a", value),)), ("A", (("b", value), ("order-id", "1")))]
    for _ in range(300):
        several = tuple((name, chosen.choice([*VALUES, None])) for name in NAMES)
        rows.append((chosen.choice([*VALUES, None]), several))
    return rows


ROWS = all_kinds_of_rows()


def frame(spark: SparkSession) -> DataFrame:
    values = [(place, tags, None if p is None else dict(p)) for place, (tags, p) in enumerate(ROWS)]
    return spark.createDataFrame(values, COLUMNS)


def by_spark(spark: SparkSession, filters: list[MessageFilter]) -> list[list[bool]]:
    """What each filter says of each row; one job for all."""
    columns = [each.column().alias(f"f{number}") for number, each in enumerate(filters)]
    found = frame(spark).select("place", *columns).orderBy("place").collect()
    return [[row[f"f{number}"] for row in found] for number in range(len(filters))]


def test_spark_and_arrow_agree_on_every_kind_of_comparison(spark: SparkSession) -> None:
    literals = (
        "1",
        "-1",
        "1.5",
        "'1'",
        "'x'",
        "''",
        "'it''s'",
        "TRUE",
        "FALSE",
        "9007199254740993",
    )
    signs = ("=", "<>", "<", ">=")
    texts = [
        f"sql:{name} {sign} {literal}"
        for name in ("a", "TAGS")
        for literal in literals
        for sign in (signs[:2] if literal in ("TRUE", "FALSE") else signs)
    ]
    texts += ["*", "A", "x || it's || é", "sql:a IN (1, 'x', TRUE)", "sql:a NOT IN ('x')",
              "sql:a IS NULL", "sql:NOT (a > 1 OR b = TRUE)", "sql:a BETWEEN '0' AND 'x'",
              'sql:"order-id" = 1 AND TAGS IS NOT NULL']  # fmt: skip
    filters = [parse_filter(text) for text in texts]

    found = dict(zip(texts, by_spark(spark, filters), strict=True))

    assert found == {
        t: f.mask(table_of(ROWS)).to_pylist() for t, f in zip(texts, filters, strict=True)
    }


@FEW
@given(several=st.lists(expressions, min_size=10, max_size=10))
def test_spark_and_arrow_agree_on_any_expression(
    spark: SparkSession, several: list[Written]
) -> None:
    filters = [parse_filter(f"sql:{written.text}") for written in several]

    found = by_spark(spark, filters)

    assert found == [each.mask(table_of(ROWS)).to_pylist() for each in filters]
    assert found == [[written.truth(row) is True for row in ROWS] for written in several]


def test_widest_filter_is_no_burden_for_spark(spark: SparkSession) -> None:
    wide = parse_filter("sql:" + " OR ".join(f"a = {number}" for number in range(MAX_COMPARISONS)))

    (found,) = by_spark(spark, [wide])

    assert found == wide.mask(table_of(ROWS)).to_pylist()
