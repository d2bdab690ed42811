"""The dashboard in a real Chromium: keyboard, phone, themes, live updates, accessibility."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.dashboard_world import DashboardWorld
from tests.kit.reading import wait_until
from tests.places import browser as kit
from tests.places.browser import Browser, axe_script
from tests.places.dashboard_screenshots import paths_of
from txmq.ops.dashboard.app import Dashboard, DashboardEndpoint

pytestmark = pytest.mark.skipif(
    not kit.is_there(), reason="chromium and chromium-driver are not on this machine"
)
TAB, ENTER = "\ue004", "\ue007"
PHONE, DESK = 390, 1440
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardWorld]:
    made = DashboardWorld(tmp_path_factory.mktemp("dashboard"))
    made.troubled_day(4)
    yield made
    made.close()


@pytest.fixture(scope="module")
def root(world: DashboardWorld) -> Iterator[str]:
    shown = Dashboard(world.store, DashboardEndpoint("127.0.0.1:0"), clock=world.clock)
    shown.counting.history = world.dashboard.counting.history
    with shown.start() as running:
        wait_until(lambda: shown.counting.last is not None, 60, "a count")
        yield running.address.rstrip("/")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with kit.browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture
def paths(world: DashboardWorld) -> dict[str, str]:
    return {**paths_of(world.ids), "evil": f"/messages/{world.ids['evil']}:0"}


def test_no_page_scrolls_sideways_or_complains(
    window: Browser, root: str, paths: dict[str, str]
) -> None:
    wide = {}
    for width in (PHONE, DESK):
        window.size(width)
        for path in paths.values():
            window.open(root + path)
            if window.run("return document.documentElement.scrollWidth") > width:
                wide[width, path] = window.run("return document.documentElement.scrollWidth")

    assert wide == {}
    messages = [line for line in window.console() if "404" not in line]
    assert messages == []


def test_axe_finds_nothing_serious(window: Browser, root: str, paths: dict[str, str]) -> None:
    script = axe_script()
    if script is None:
        pytest.skip("axe-core is not on this machine; AXE names its axe.min.js")
    found = {}
    for width, scheme in ((DESK, "light"), (DESK, "dark"), (PHONE, "light")):
        window.size(width)
        window.scheme(scheme)
        for path in paths.values():
            window.open(root + path)
            window.run(script)
            violations = window.run("return axe.run().then(result => result.violations)")
            for one in violations:
                if one["impact"] in SERIOUS:
                    nodes = [node["html"][:200] for node in one["nodes"][:3]]
                    found[path, width, scheme, one["id"]] = nodes
    assert found == {}


def test_keyboard_alone_reaches_the_content_and_shows_where_it_is(
    window: Browser, root: str
) -> None:
    window.size(DESK)
    window.open(root + "/")
    window.press(TAB)
    assert window.run("return document.activeElement.className") == "skip"
    window.press(ENTER)
    wait_until(lambda: window.run("return document.activeElement.id") == "main", 60, "the content")
    window.press(TAB)
    outline = window.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    assert window.run("return document.querySelector('main').contains(document.activeElement)")


def test_theme_follows_the_machine_until_somebody_chooses(window: Browser, root: str) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    window.scheme("light")
    window.open(root + "/topics")
    light = window.run(background)
    window.scheme("dark")
    dark = window.run(background)
    assert light != dark

    window.run("document.querySelector('[data-act=theme]').click()")
    assert window.run(background) == light
    window.open(root + "/groups")
    assert window.run(background) == light
    window.run("localStorage.clear()")
    window.open(root + "/groups")
    assert window.run(background) == dark
    assert window.run("return document.cookie") == ""


def test_parts_are_renewed_and_what_has_the_focus_stays(window: Browser, root: str) -> None:
    window.open(root + "/transactions")
    window.run("document.querySelector('#counted').textContent = 'long ago'")
    window.run("document.querySelector('#list a').focus(); window.mark = document.activeElement")
    window.run("return update()")
    assert "Counted" in window.run("return document.querySelector('#counted').textContent")
    assert window.run("return document.activeElement === window.mark")

    window.run("document.querySelector('[data-act=live]').click()")
    window.run("document.querySelector('#counted').textContent = 'long ago'")
    window.run("return update()")
    assert window.run("return document.querySelector('#counted').textContent") == "long ago"
    window.run("localStorage.clear()")


def test_command_is_copied_as_it_is_written(window: Browser, root: str) -> None:
    window.open(root + "/topics/order-paid")
    window.run(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => "
        "{ window.copied = text; }}})"
    )
    window.run("document.querySelector('.copy').click()")
    wait_until(lambda: window.run("return window.copied || null"), 60, "a copy")
    assert window.run("return window.copied").startswith("txmq consume ")


def test_text_of_others_does_nothing(window: Browser, root: str, paths: dict[str, str]) -> None:
    window.open(root + paths["evil"])

    assert window.run("return document.querySelectorAll('script').length") == 1
    assert "<script>" in window.run("return document.querySelector('main').innerText")


def test_page_of_others_can_neither_frame_nor_fetch(window: Browser, root: str) -> None:
    other = root.replace("127.0.0.1", "localhost")
    window.open(f"{root}/topics")
    script = "return fetch(arguments[0]).then(answer => answer.status, error => 'refused')"

    assert window.run(script, f"{other}/topics") == "refused"
    assert window.run(script, f"{root}/topics") == 200
    window.console()


def test_page_without_live_parts_is_not_read_again(
    window: Browser, root: str, paths: dict[str, str]
) -> None:
    count = "let n = 0; window.fetch = () => { n += 1; return Promise.reject(); };"
    asked = {}
    for path in ("/", "/search?q=order-7", paths["evil"]):
        window.open(root + path)
        asked[path] = window.run(f"{count} return update().then(() => n);")

    assert asked == {"/": 1, "/search?q=order-7": 0, paths["evil"]: 0}
