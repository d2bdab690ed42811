"""Which jars of Delta belong to which installed PySpark and Delta, each with its hash."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from txmq.errors import EnvironmentProblemError

_OF_DELTA_4_4_0 = {
    "io.delta_delta-kernel-api-4.4.0.jar": (
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
    ),
    "io.delta_delta-kernel-defaults-4.4.0.jar": (
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
    ),
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar": (
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
    ),
    "io.delta_delta-storage-4.4.0.jar": (
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
    ),
    "io.unitycatalog_unitycatalog-client-0.6.0.jar": (
        "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19"
    ),
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": (
        "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150"
    ),
}
# The one jar that differs with Spark.
_DELTA_4_4_0_FOR_SPARK = {
    "4.0": "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104",
    "4.1": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "4.2": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
}


class Release(NamedTuple):
    """The jars that Delta needs beside those of PySpark."""

    delta: str
    spark: str
    artifact: str
    jars: Mapping[str, str]

    @property
    def coordinate(self) -> str:
        """For `spark.jars.packages`."""
        return f"io.delta:{self.artifact}:{self.delta}"


def _release_4_4_0(spark: str, digest: str) -> Release:
    artifact = f"delta-spark_{spark}_2.13"
    jars = {**_OF_DELTA_4_4_0, f"io.delta_{artifact}-4.4.0.jar": digest}
    return Release("4.4.0", spark, artifact, jars)


RELEASES = (
    *(_release_4_4_0(*each) for each in _DELTA_4_4_0_FOR_SPARK.items()),
    Release(
        "4.0.1",
        "4.0",
        "delta-spark_2.13",
        {
            "io.delta_delta-spark_2.13-4.0.1.jar": (
                "a1e76860b19fe1e6b205a4ea7a9099a2f9575d39bb71d49b3e679b299d0efb91"
            ),
            "io.delta_delta-storage-4.0.1.jar": (
                "ecc42c5aaa51c423312d9e4e48aa4a12b34740bf2c37de0e8f279277ec3d12e4"
            ),
        },
    ),
)


def installed_release() -> Release:
    """The one for the installed PySpark and the installed Delta.

    Raises: EnvironmentProblemError where one of them is missing, or txmq has no jars for both.
    """
    try:
        return release_of(version("pyspark"), version("delta-spark"))
    except PackageNotFoundError as missing:
        raise EnvironmentProblemError(
            f"the package {missing.name} is not installed", "Run `pip install 'txmq[spark]'`"
        ) from missing


def release_of(pyspark: str, delta: str) -> Release:
    """The one for these versions of the packages.

    Raises: EnvironmentProblemError where txmq has no jars for them.
    """
    spark = ".".join(pyspark.split(".")[:2])
    for release in RELEASES:
        if (release.spark, release.delta) == (spark, delta):
            return release
    known = ", ".join(f"{each.spark} with {each.delta}" for each in RELEASES)
    raise EnvironmentProblemError(
        f"txmq has no jars for PySpark {pyspark} with delta-spark {delta}, but for {known}",
        "Run `pip install 'txmq[spark]'`, or make the session yourself, with the jars of your Delta"
        " (docs/install.md)",
    )


def checkpoint_files_class(pyspark: str) -> str:
    """The class of Spark that renames the files of checkpoints; Spark 4.1 has moved it."""
    package = "org.apache.spark.sql.execution.streaming"
    place = "" if pyspark.startswith("4.0.") else ".checkpointing"
    return f"{package}{place}.FileSystemBasedCheckpointFileManager"
