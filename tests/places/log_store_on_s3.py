"""A program for spark-submit: Spark's log store and a rival put the same commits at once."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import from_url
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

COMMITS = 40


def main(lake: str) -> dict[str, int]:
    """How many commits each side was told to have made, and of how many that is true."""
    spark = SparkSession.builder.getOrCreate()
    lake = lake.replace("s3://", "s3a://")
    rival = from_url(f"{lake}/log")
    told = {"spark": 0, "rival": 0, "both": 0, "neither": 0, "true": 0}
    barrier = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for number in range(COMMITS):
            name = f"{number:020}.json"
            by_spark = pool.submit(_put_by_spark, spark, f"{lake}/log/{name}", barrier)
            by_rival = pool.submit(_put_by_rival, rival, name, barrier)
            winners = (by_spark.result(), by_rival.result())
            told["spark"] += winners[0]
            told["rival"] += winners[1]
            told["both"] += all(winners)
            told["neither"] += not any(winners)
            content = bytes(obstore.get(rival, name).bytes()).decode().strip()
            told["true"] += winners == (content == "spark", content == "rival")
    return told


def _put_by_spark(spark: Any, path: str, barrier: Barrier) -> bool:
    jvm = spark._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    class_name = spark.conf.get("spark.delta.logStore.s3a.impl")
    kind = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(class_name)
    log_store = kind.getConstructors()[0].newInstance(_array(spark, configuration))
    actions = jvm.java.util.ArrayList()
    actions.add("spark")
    place, overwrite = jvm.org.apache.hadoop.fs.Path(path), False
    barrier.wait()
    try:
        log_store.write(place, actions.iterator(), overwrite, configuration)
    except Py4JJavaError as error:
        if "FileAlreadyExists" in str(error.java_exception.toString()):
            return False
        raise
    return True


def _array(spark: Any, value: Any) -> Any:
    array = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Object, 1)
    array[0] = value
    return array


def _put_by_rival(rival: Any, name: str, barrier: Barrier) -> bool:
    barrier.wait()
    try:
        obstore.put(rival, name, b"rival", mode="create")
    except (AlreadyExistsError, PreconditionError):
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201 - the test reads it
