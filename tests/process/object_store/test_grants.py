"""The S3 policies of deploy/rights, on a server that enforces them: each role does its work."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.exceptions import ClientError
from deltalake import DeltaTable

from tests.kit import s3
from tests.kit.grants import GROUP, LOGS, READERS, ROLES, file_name, named, s3_policy
from tests.kit.grants import TOPIC as ANY_TOPIC
from tests.process.docs import role_process
from tests.process.docs.role_process import TOPIC
from txmq import Broker, Message, PullConsumer, Store, TransactionProducer
from txmq.spark.sql_views import SqlEngine, sql_views

if os.environ.get("OBJECT_STORE", "s3") != "s3":
    pytest.skip("policies of S3", allow_module_level=True)

NAMES = {GROUP: role_process.GROUP, READERS: role_process.READERS, ANY_TOPIC: TOPIC}
LOCATION, PREFIX = f"s3://{s3.BUCKET}/txmq", "txmq"
# A folder of each kind; the last ones are other people's.
FOLDERS = (
    *LOGS[:3], f"topics/{TOPIC}", "topics/other", "state/publisher", "state/group_billing",
    "state/remote_orders", "state/group_other", "state/remote_other", "clock",
)  # fmt: skip


class Guarded(NamedTuple):
    """A server with a store that enforces policies, and the keys of each role."""

    server: s3.S3
    keys: Mapping[str, Mapping[str, str]]

    def environment(self, role: str) -> dict[str, str]:
        key = self.keys[role]
        own = {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
        return {**self.server.environment, **own}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with (
        s3.moto(tmp_path_factory.mktemp("guarded") / "server.log") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in server.environment.items():
            patch.setenv(name, value)
        fill(Store.create(LOCATION))
        iam = boto3.client("iam", endpoint_url=server.endpoint, region_name=s3.REGION)
        keys = {role: key_of(iam, role) for role in ROLES}
        enforce(server)
        yield Guarded(server, keys)


def fill(store: Store) -> None:
    """Let each role find something to do."""
    with TransactionProducer(store, producer_group=role_process.GROUP) as producer:
        producer.send([Message(TOPIC, b"visible"), Message(TOPIC, b"visible too")])
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"open"))
        transaction.prepare()
    Broker(store).run_once()
    with PullConsumer(store, consumer_group=role_process.READERS, topics={TOPIC: "*"}):
        pass


def key_of(iam: Any, role: str) -> dict[str, str]:
    user, policy = file_name(role), s3_policy(ROLES[role], names=NAMES)
    iam.create_user(UserName=user)
    iam.put_user_policy(UserName=user, PolicyName="txmq", PolicyDocument=json.dumps(policy))
    key: dict[str, str] = iam.create_access_key(UserName=user)["AccessKey"]
    return key


def enforce(server: s3.S3) -> None:
    """From now on each request needs a key, and the rights of it."""
    request = urllib.request.Request(  # noqa: S310 - this machine
        f"{server.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - this machine


def read_sql(store: Store) -> None:
    assert set(sql_views(store, SqlEngine.DUCKDB))


WORK: dict[str, Callable[[Store], None]] = {
    **role_process.ROLES, "reader of SQL": read_sql
}  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_role_does_its_work_with_its_policy(
    guarded: Guarded, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in guarded.environment(role).items():
        monkeypatch.setenv(name, value)

    if role == "reader":
        # It opens no store, and may read no settings.
        DeltaTable(f"{LOCATION}/topics/{TOPIC}").to_pyarrow_dataset().to_table(use_threads=False)
    else:
        WORK[role](Store.open(LOCATION))


@pytest.mark.parametrize("role", ROLES)
def test_role_may_do_nothing_else(guarded: Guarded, role: str) -> None:
    key, rights = guarded.keys[role], ROLES[role]
    client = boto3.client(
        "s3", endpoint_url=guarded.server.endpoint, region_name=s3.REGION,
        aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"],
    )  # fmt: skip

    def may(ask: Callable[..., object], **options: Any) -> set[str]:
        return {folder for folder in FOLDERS if allows(ask, f"{PREFIX}/{folder}/probe", options)}

    assert may(client.put_object, Body=b"") == within(rights.writes)
    assert may(client.get_object) == within(rights.reads)
    assert may(client.delete_object) == within(rights.deletes)


def within(folders: tuple[str, ...]) -> set[str]:
    wanted = [named(folder, NAMES) for folder in folders]
    return {f for f in FOLDERS if any(w in ("", f) or f.startswith(f"{w}/") for w in wanted)}


def allows(ask: Callable[..., object], key: str, options: Mapping[str, Any]) -> bool:
    try:
        ask(Bucket=s3.BUCKET, Key=key, **options)
    except ClientError as error:
        # What is allowed and not there is another error.
        return error.response["Error"]["Code"] != "AccessDenied"
    return True
