"""Names of topics in a catalog."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ConfigError
from txmq.spark.sql_views import CatalogSchema, name_in_catalog, names_in_catalog, view_statements

TOPICS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,5}(\.[A-Za-z0-9][A-Za-z0-9_-]{0,3})?\Z")


@pytest.mark.parametrize("text", ["messages", "main.messages", "Main.m_1"])
def test_schema_is_one_or_two_plain_names(text: str) -> None:
    assert str(CatalogSchema.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", ".", "a.b.c", "a b", "a;DROP TABLE x", "`a`", "a.b\n", "ä", None, 7, "a" * 256]
)
def test_schema_that_needs_quotes_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"main\.messages"):
        CatalogSchema.parse(text)


def test_name_has_an_underscore_in_place_of_what_needs_quotes() -> None:
    assert name_in_catalog("tenant.order-paid") == "tenant_order_paid"


@given(st.sets(TOPICS, max_size=8))
def test_no_two_topics_share_a_name_and_each_is_named_or_told(topics: set[str]) -> None:
    names, problems = names_in_catalog(topics)

    folded = [name.lower() for name in names.values()]
    assert len(set(folded)) == len(folded)
    assert names.keys() | problems.keys() == topics
    assert not names.keys() & problems.keys()
    assert all(re.fullmatch("[A-Za-z0-9_]+", name) for name in names.values())


def test_topic_that_is_spelt_as_the_name_gets_it() -> None:
    names, problems = names_in_catalog({"order-paid", "order_paid", "other"})

    assert names == {"order_paid": "order_paid", "other": "other"}
    assert "order_paid" in problems["order-paid"]
    assert "by path" in problems["order-paid"]


def test_views_name_tables_of_their_schema_alone() -> None:
    statements = view_statements(CatalogSchema.parse("main.messages"))

    assert statements.keys() == {
        "txmq_transactions", "txmq_stuck", "txmq_topic_lag", "txmq_dead_letters",
    }  # fmt: skip
    for statement in statements.values():
        assert set(re.findall(r"(?:FROM|JOIN) (`\S*)", statement)) <= {
            "`main`.`messages`.`txmq_half`",
            "`main`.`messages`.`txmq_op`",
            "`main`.`messages`.`txmq_settled`",
        }
