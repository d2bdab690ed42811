"""Local transactions by Spark, on a table in a bucket that delta-rs cannot write.

On a disk Spark's own commits may overwrite others; with the log store of txmq none does on S3.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from tests.kit import s3
from tests.kit.spark_environment import forget_connect
from txmq.listeners.delta import DeltaListener
from txmq.producer.transaction import Transaction
from txmq.spark.session import local_session
from txmq.user_data.s3_log_store import s3_log_store_jar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

LOCATION = f"s3://{s3.BUCKET}/orders"
# A change is an append, as one that moves rows would fail beside another one, fence or not.
WITH_FEATURES = (
    "CREATE TABLE delta.`{table}` (transaction_id STRING) USING delta CLUSTER BY (transaction_id) "
    "TBLPROPERTIES ('delta.enableRowTracking' = 'true', 'delta.enableInCommitTimestamps' = 'true')"
)
_SETTINGS_FILE = Path(__file__).parents[3] / "conf" / "spark-s3.conf"


class SparkBusiness:
    """An append by Spark to a table with row tracking, clustering and times in its commits."""

    # Each write by Spark is many tasks, and takes a second or two.
    threads = 3
    immunity_s = 2.5

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def errors(self) -> tuple[type[Exception], ...]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        return (PySparkException, Py4JError)

    def create(self) -> None:
        self._spark().sql(WITH_FEATURES.format(table=_of_spark(LOCATION)))

    def do(self, transaction: Transaction, pause: Callable[[], None]) -> None:
        options = transaction.delta_options()
        pause()
        row = self._spark().range(1).selectExpr(f"'{transaction.id}' AS transaction_id")
        writer = row.write.format("delta").mode("append").options(**options)
        writer.save(_of_spark(LOCATION))
        pause()

    def rows(self) -> list[str]:
        found = DeltaTable(LOCATION, storage_options=self._storage_options).to_pyarrow_table()
        return [str(each) for each in found["transaction_id"].to_pylist()]

    def listener(self, *, fenced: bool) -> Any:
        assert fenced, "the hole is seen with delta-rs"
        return DeltaListener(LOCATION, storage_options=self._storage_options)

    @property
    def _storage_options(self) -> dict[str, str]:
        return {**s3.S3(0).environment, "AWS_ENDPOINT_URL": self._endpoint}

    def _spark(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                forget_connect()
                self._session = local_session(extra=self._settings(), for_minutes=True)
            return self._session

    def _settings(self) -> dict[str, str]:
        lines = _SETTINGS_FILE.read_text(encoding="utf-8").splitlines()
        pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
        settings = {name: value.strip() for name, value in pairs}
        # A local session has Delta itself.
        packages = settings["spark.jars.packages"].split(",")
        others = [name for name in packages if not name.startswith("io.delta")]
        return settings | {
            "spark.jars.packages": ",".join(others),
            "spark.jars": str(s3_log_store_jar()),
            "spark.hadoop.fs.s3a.endpoint": self._endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": s3.REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": s3.KEY_ID,
            "spark.hadoop.fs.s3a.secret.key": s3.SECRET,
        }


def _of_spark(location: str) -> str:
    return location.replace("s3://", "s3a://")
