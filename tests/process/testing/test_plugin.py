"""pytest with the fixtures of txmq.testing, in a process of its own as at a user's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "testing.md"
PLUGIN = ("-p", "txmq.testing.fixtures", "-p", "no:cacheprovider")
HEAVY = "deltalake numpy pandas pyarrow pyspark rich txmq.producer txmq.testing.faults typer yaml"


@pytest.fixture(autouse=True)
def txmq_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a clone that is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*PLUGIN, *options)


def test_page_passes_as_it_stands(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    pytester.makepyfile("\n\n".join(blocks))

    run(pytester, "-W", "error").assert_outcomes(passed=6)


def test_plugin_loads_nothing_heavy(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TXMQ_FAILPOINTS", raising=False)
    # Other plugins of the environment have their own weight.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        f"""
        import sys

        def test_loaded():
            assert "txmq.testing.fixtures" in sys.modules
            assert sorted(set("{HEAVY}".split()) & set(sys.modules)) == []
        """
    )

    run(pytester).assert_outcomes(passed=1)


def test_fixtures_that_are_named_twice_are_there_once_for_each_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from txmq import Message

        pytest_plugins = ["txmq.testing.fixtures"]

        @pytest.mark.parametrize("number", [1, 2])
        def test_one(txmq_producer, txmq_published, number):
            txmq_producer.send(Message("orders", b""))
            assert len(txmq_published("orders")) == 1

        def test_what_is_left_open_is_closed(txmq_producer, txmq_broker, txmq_consumer):
            txmq_producer.send(Message("orders", b""))
            txmq_broker.run()
            assert len(txmq_consumer("billing", "orders").poll()) == 1
        """
    )

    run(pytester, "-W", "error").assert_outcomes(passed=3)
