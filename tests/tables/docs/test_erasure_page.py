"""The commands and the code of docs/erasure.md do what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.reading import publish
from txmq import Message, Store, TransactionProducer
from txmq.ops.cli.app import app

PAGE = Path(__file__).parents[3] / "docs" / "erasure.md"


@pytest.fixture
def filled(store: Store) -> Store:
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send(Message("order-paid", b"of a person", keys="customer-7"))
    publish(store)
    return store


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return str(found)


def test_commands_find_then_erase_then_prove(filled: Store) -> None:
    outputs = []
    for line in block("sh").splitlines():
        words = shlex.split(line.replace("$STORE", filled.location))
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, result.output
        outputs.append(result.output)

    assert "2 rows found" in outputs[0]
    assert "2 rows erased" in outputs[1]
    assert "0 rows found, 2 old files hold them" in outputs[2]


def test_python_erases_and_proves(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("python"), {"store": filled})  # noqa: S102 - our own page

    assert capsys.readouterr().out.startswith("2 [('half', ")
