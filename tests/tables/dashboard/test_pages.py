"""Each page over a real store: what it shows, what it hides, who may ask for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html import unescape

import pytest
from typer.testing import CliRunner

from tests.kit.dashboard_world import CONSUMERS, SECRET, DashboardWorld
from tests.kit.wsgi import Page, asked
from txmq.errors import StorageError, StoreNotFoundError
from txmq.message.ids import first_transaction_id
from txmq.ops.admin.status import Admin
from txmq.ops.cli.app import app as command_line
from txmq.store.store import Store

ADDRESSES = (
    "/", "/transactions", "/transactions?state=DISCARDED", "/topics", "/topics?show=system",
    "/topics?show=parked", "/topics/order-paid", "/groups", f"/groups/{CONSUMERS}",
    "/dead-letters", f"/dead-letters/{CONSUMERS}", "/delayed", "/search",
    "/search?q=order-7", "/search?q=nothing-like-it",
)  # fmt: skip
OF_IDS = ("/transactions/{open}", "/transactions/{discarded}", "/transactions/{committed}",
          "/messages/{committed}:0", "/messages/{letter}", "/search?q={open}")  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardWorld]:
    made = DashboardWorld(tmp_path_factory.mktemp("dashboard"))
    made.troubled_day(3)
    yield made
    made.close()


def addresses(world: DashboardWorld) -> list[str]:
    return [*ADDRESSES, *(address.format(**world.ids) for address in OF_IDS)]


def seen(world: DashboardWorld, address: str) -> Page:
    page = world.page(address)
    assert page.status == 200, page.words
    return page


def test_every_page_has_one_heading_and_no_body_and_strict_rules(world: DashboardWorld) -> None:
    for address in addresses(world):
        page = world.page(address)
        assert page.status in {200, 303}, (address, page.words)
        assert page.status == 303 or page.text.count("<h1") == 1, address
        assert SECRET not in page.text, address
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["X-Frame-Options"] == "DENY"
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in page.headers


def test_each_link_leads_to_a_page(world: DashboardWorld) -> None:
    links = {
        link.replace("&amp;", "&")
        for address in addresses(world)
        for link in re.findall(r'(?:href|src|action)="(/[^"]*)"', world.page(address).text)
    }

    assert len(links) > 20
    assert {link: world.page(link).status for link in links if world.page(link).status >= 400} == {}


def test_each_command_is_one_that_txmq_takes(
    world: DashboardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that can be read ends at the store, which is not there."""
    texts = {
        unescape(text)
        for address in addresses(world)
        for text in re.findall(r'class="line"><code>(.*?)</code>', world.page(address).text)
    }
    lines = {tuple(shlex.split(text))[1:] for text in texts}

    def is_gone(location: str, **_: object) -> Store:
        raise StoreNotFoundError(location, "is not there")

    monkeypatch.setattr(Store, "open", is_gone)
    results = {line: CliRunner().invoke(command_line, list(line)) for line in lines}

    assert len(lines) > 10
    assert {line: result.output for line, result in results.items()
            if "is not there" not in result.output} == {}  # fmt: skip


def test_overview_begins_with_what_needs_an_operator(world: DashboardWorld) -> None:
    words = seen(world, "/").words

    assert words.index("Topic stock-changed is parked") < words.index("discarded")
    assert "1 transaction discarded" in words
    assert "open for more than an hour" in words
    status = Admin(world.store, clock=world.clock).status()
    assert f"Open transactions {status.open:,}" in words
    assert f"{status.committed:,} in all" in words


def test_charts_begin_with_the_second_count(world: DashboardWorld) -> None:
    text = seen(world, "/").text

    assert text.count('<svg class="chart"') == 4
    assert "Nothing to draw yet" not in text


def test_list_of_open_transactions(world: DashboardWorld) -> None:
    page = seen(world, "/transactions")
    assert page.text.index(world.ids["old"]) < page.text.index(world.ids["open"])
    assert world.ids["committed"] not in page.text

    discarded = seen(world, "/transactions?state=DISCARDED").text
    assert world.ids["discarded"] in discarded
    assert world.ids["open"] not in discarded
    assert "No transaction is like this" in seen(world, "/transactions?group=nobody").words


def test_life_of_a_transaction_is_a_timeline(world: DashboardWorld) -> None:
    words = seen(world, f"/transactions/{world.ids['committed']}").words
    assert words.index("half to order-paid") < words.index("claim COMMIT")
    assert words.index("fact COMMITTED") < words.index("message in order-paid")
    assert "UTC" in words

    words = seen(world, f"/transactions/{world.ids['discarded']}").words
    assert "txmq resume" in words
    assert "--reason WHY" in words
    assert "TIMEOUT" in words


def test_message_has_its_body_only_where_it_is_asked_for(world: DashboardWorld) -> None:
    address = f"/messages/{world.ids['committed']}:0"

    assert "Its body is not shown" in seen(world, address).words
    assert SECRET in world.page(address, with_bodies=True).text


def test_topic_shows_offsets_readers_and_why_it_is_parked(world: DashboardWorld) -> None:
    words = seen(world, "/topics/order-paid").words
    assert "billing" in words
    assert "audit" in words
    assert "Next offset" in words
    assert "It is parked since" in seen(world, "/topics/stock-changed").words
    assert "invoice-due" not in seen(world, "/topics?show=parked").words


def test_groups_are_listed_by_lag(world: DashboardWorld) -> None:
    text = seen(world, "/groups").text

    assert text.index(">audit<") < text.index(">billing<")
    assert "Living members" in seen(world, "/groups/audit").words


def test_dead_letters_are_listed_with_their_reason(world: DashboardWorld) -> None:
    assert CONSUMERS in seen(world, "/dead-letters").words
    page = seen(world, f"/dead-letters/{CONSUMERS}")
    assert world.ids["letter"] in page.text
    assert "no customer of this number" in page.words
    assert "txmq dead-letters replay" in page.words
    assert "no dead letter" in seen(world, "/dead-letters/audit").words


def test_delayed_messages_are_listed_by_their_time(world: DashboardWorld) -> None:
    words = seen(world, "/delayed").words

    assert "of 3 messages" in words
    assert words.index("min") < words.index("1 d")


def test_search_finds_keys_and_leads_ids_to_their_pages(world: DashboardWorld) -> None:
    assert world.ids["committed"] in seen(world, "/search?q=order-100").text
    assert "visible" in seen(world, "/search?q=order-100&topic=order-paid").words
    assert (
        world.page(f"/search?q={world.ids['open']}").headers["Location"]
        == f"/transactions/{world.ids['open']}"
    )
    message = f"{world.ids['open']}:0"
    assert world.page(f"/search?q={message}").headers["Location"] == f"/messages/{message}"
    assert world.page("/search?q=two%20words").status == 400


def test_hostile_text_is_shown_as_text(world: DashboardWorld) -> None:
    evil = world.ids["evil"]
    for address in ("/", "/topics/stock-changed", "/transactions", f"/transactions/{evil}",
                    f"/messages/{evil}:0"):  # fmt: skip
        text = seen(world, address).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text
        assert not set(text) & set("\u202e\x1b")
    echoed = world.page("/search?q=%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AE&topic=%22%3E")
    assert "<script>alert" not in echoed.text


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/nowhere", 404), ("/transactions/no-id", 404), ("/topics/nowhere", 404),
        ("/topics/..%2f..%2fetc", 400), ("/messages/x", 404), ("/groups/nobody", 404),
        ("/static/../app.py", 404), ("/static/app.py", 404), ("/%ff%fe", 404),
        (f"/transactions/{first_transaction_id(1_700_000_000_000)}", 404),
        ("/transactions?page=999999999999999999999", 200), ("/transactions?page=-1", 200),
        ("/?" + "&".join(f"a{n}=1" for n in range(99)), 200),
        (f"/dead-letters/{CONSUMERS}?from=x", 200), (f"/dead-letters/{CONSUMERS}?from=999", 200),
    ],
)  # fmt: skip
def test_address_that_names_nothing_has_a_page_that_says_so(
    world: DashboardWorld, address: str, status: int
) -> None:
    page = world.page(address)

    assert page.status == status, page.words
    assert "Traceback" not in page.text


def test_who_may_not_look_sees_nothing(world: DashboardWorld) -> None:
    app = world.dashboard.app
    assert asked(app, "/", HTTP_HOST="evil.example:8320").status == 421
    assert asked(app, "/", "POST").status == 405
    fetched = {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "no-cors"}
    assert asked(app, "/search?q=x", **fetched).status == 403
    linked = {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate",
              "HTTP_SEC_FETCH_DEST": "document"}  # fmt: skip
    assert asked(app, "/", **linked).status == 200
    assert asked(app, "/", **{**linked, "HTTP_SEC_FETCH_DEST": "iframe"}).status == 403
    head = asked(app, "/", "HEAD")
    assert (head.status, head.text) == (200, "")


def test_count_that_fails_leaves_the_last_figures_and_says_so(
    world: DashboardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StorageError("op", "is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Admin, "status", fails)
        with pytest.raises(StorageError):
            world.count()
    words = seen(world, "/").words
    world.count()

    assert "The last count failed" in words
    assert "is gone" in words
    assert "Open transactions" in words
    assert "The last count failed" not in seen(world, "/").words
