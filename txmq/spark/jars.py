"""Delta's jars for local Spark: Spark's own resolver fetches them once into a cache.

`delta.configure_spark_with_delta_pip` would resolve 26 jars (70 MB) at each start, and check none
of them against a hash.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from txmq.errors import EnvironmentProblemError, step_for_extra

if TYPE_CHECKING:
    from collections.abc import Iterable

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
# Java's key store format: magic number, version, entries. A reader without a password does not
# check the digest at the end.
_MAGIC, _VERSION, _TRUSTED, _NO_DATE = 0xFEEDFEED, 2, 2, 0
# Over 70 MB. PySpark ships 22 of these 26 jars, mostly newer; Delta works without the other 4.
_SHIPPED_BY_SPARK = (
    "com.fasterxml.*:*",
    "com.github.luben:*",
    "com.google.*:*",
    "commons-*:*",
    "io.airlift:*",
    "javax.*:*",
    "org.apache.*:*",
    "org.locationtech.*:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.*:*",
)
_FETCH_SECONDS = 900
_SHOWN_CAUSES = 3
_WORDS_OF_CAUSES = ("Exception", "Host ", "Server access error", "proxy server", "PKIX")


def cache_folder() -> Path:
    """Return the folder for fetched files: ~/.cache/txmq, or `txmq` below XDG_CACHE_HOME."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser().absolute() / "txmq"


def jar_folder(cache: Path) -> Path:
    """Return the folder for the jars of the installed Delta and Spark."""
    release = installed_release()
    return cache / f"delta-{release.delta}-spark-{release.spark}"


def jar_paths(cache: Path) -> tuple[Path, ...]:
    """Return the paths of all jars of Delta, fetched or not."""
    return tuple(jar_folder(cache) / name for name in installed_release().jars)


def missing_jars(folder: Path) -> tuple[str, ...]:
    """Find the jars that `folder` lacks or holds with another hash than expected."""
    expected = installed_release().jars.items()
    return tuple(name for name, digest in expected if _digest(folder / name) != digest)


def fetch_jars(cache: Path, java_home: Path) -> None:
    """Fetch the jars by Spark's resolver, which honours a user's mirror and proxy settings.

    Raises: EnvironmentProblemError.
    """
    folder = jar_folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        fetched = _fetched_jars(Path(work), java_home, folder)
        for name in installed_release().jars:
            (fetched / name).replace(folder / name)


def spark_home() -> Path:
    """Find the Spark that came with PySpark, whatever SPARK_HOME says."""
    import pyspark

    return Path(pyspark.__file__).parent


def _digest(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetched_jars(work: Path, java_home: Path, folder: Path) -> Path:
    """Try with Java's certificates, then with Python's, which may know the one of a proxy."""
    trust_store = work / "trusted"
    write_trust_store(trust_store, trusted_by_python())
    fetched = work / "jars"
    output = ""
    for option in ("", f"-Djavax.net.ssl.trustStore={trust_store}"):
        output += _resolve(work, java_home, option)
        if not missing_jars(fetched):
            return fetched
    raise EnvironmentProblemError(_what_is_missing(output), _what_to_do(folder))


def _resolve(work: Path, java_home: Path, option: str) -> str:
    """Submit an empty program: Spark resolves packages only when it starts one."""
    program = work / "nothing.py"
    program.touch()
    home = spark_home()
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
    for key, value in _resolver_settings(work, option).items():
        command += ["--conf", f"{key}={value}"]
    try:
        return _output([*command, str(program)], JAVA_HOME=str(java_home), SPARK_HOME=str(home))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Exception: {error}\n"


def _output(command: list[str], **variables: str) -> str:
    finished = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_FETCH_SECONDS,
        check=False,
    )
    return finished.stdout


def _resolver_settings(work: Path, option: str) -> Mapping[str, str]:
    return {
        "spark.jars.packages": installed_release().coordinate,
        "spark.jars.excludes": ",".join(_SHIPPED_BY_SPARK),
        "spark.jars.ivy": str(work),
        "spark.driver.extraJavaOptions": option,
    }


def _what_is_missing(output: str) -> str:
    causes = dict.fromkeys(_shortened(line) for line in output.splitlines() if _is_cause(line))
    reason = "; ".join(list(causes)[:_SHOWN_CAUSES]) or "their hashes are not the expected ones"
    return f"Delta's {len(installed_release().jars)} jars could not be fetched: {reason}"


def _is_cause(line: str) -> bool:
    return any(word in line for word in _WORDS_OF_CAUSES)


def _shortened(line: str) -> str:
    return line.strip().partition(" url=")[0]


def _what_to_do(folder: Path) -> str:
    return (
        "Check the network; behind a mirror, set DEFAULT_ARTIFACT_REPOSITORY to its address "
        "or spark.jars.ivySettings in spark-defaults.conf; "
        f"without a network, copy this folder from another machine: {folder}"
    )


def trusted_by_python() -> tuple[bytes, ...]:
    """Read the certificate authorities of the system or of SSL_CERT_FILE, each in DER."""
    return tuple(ssl.create_default_context().get_ca_certs(binary_form=True))


def write_trust_store(path: Path, certificates: Iterable[bytes]) -> None:
    """Write `certificates` for Java's setting `javax.net.ssl.trustStore`."""
    entries = [_entry(number, der) for number, der in enumerate(certificates)]
    path.write_bytes(struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries))


def _entry(number: int, certificate: bytes) -> bytes:
    head = struct.pack(">I", _TRUSTED) + _text(str(number)) + struct.pack(">Q", _NO_DATE)
    return head + _text("X.509") + struct.pack(">I", len(certificate)) + certificate


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


# --- Releases ------------------------------------------------------------------------------------


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
    """Find the release for the installed PySpark and the installed Delta.

    Raises: EnvironmentProblemError where one of them is missing, or txmq has no jars for both.
    """
    try:
        return release_of(version("pyspark"), version("delta-spark"))
    except PackageNotFoundError as missing:
        raise EnvironmentProblemError(
            f"the package {missing.name} is not installed",
            step_for_extra("spark"),
        ) from missing


def release_of(pyspark: str, delta: str) -> Release:
    """Find the release for these versions of the packages.

    Raises: EnvironmentProblemError where txmq has no jars for them.
    """
    spark = ".".join(pyspark.split(".")[:2])
    for release in RELEASES:
        if (release.spark, release.delta) == (spark, delta):
            return release
    known = ", ".join(f"{each.spark} with {each.delta}" for each in RELEASES)
    raise EnvironmentProblemError(
        f"txmq has no jars for PySpark {pyspark} with delta-spark {delta}, but for {known}",
        "Install txmq with its extra spark, or make the session yourself, with the jars of your "
        "Delta (docs/install.md)",
    )


def local_checkpoint_files(pyspark: str) -> dict[str, str]:
    """Say how Spark writes the files of checkpoints on a local disk, and there alone.

    The default starts a program four times for each file to look for a link: a hundred processes
    for each micro-batch. This one renames as atomically.
    """
    return {"spark.sql.streaming.checkpointFileManagerClass": checkpoint_files_class(pyspark)}


def checkpoint_files_class(pyspark: str) -> str:
    """Name Spark's class that renames the files of checkpoints; Spark 4.1 has moved it."""
    package = "org.apache.spark.sql.execution.streaming"
    place = "" if pyspark.startswith("4.0.") else ".checkpointing"
    return f"{package}{place}.FileSystemBasedCheckpointFileManager"
