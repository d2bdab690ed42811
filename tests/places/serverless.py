"""The rules of Databricks's serverless compute, for what a client asks of a Connect server.

By Databricks's documentation: streams run with `availableNow`, six settings can be set, nothing is
kept in memory between queries. What it refuses is refused here, with the words of its errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from pyspark.errors.exceptions.connect import AnalysisException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.proto import base_pb2, commands_pb2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTABLE = {
    "spark.databricks.execution.timeout",
    "spark.sql.ansi.enabled",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
}
# What PySpark's own client reads; it sets none of them.
_OF_PYSPARK = ("spark.sql.", "spark.connect.", "spark.python.")
_SET = re.compile(r"\s*set\s+(?!time\s+zone|var)([\w.]+)", re.IGNORECASE)
_STARTS = {"available_now", "once"}


class ServerlessRules(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Lets through what serverless compute takes, and keeps what it refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def intercept_unary_unary(self, go_on: Callable[..., Any], call: Any, request: Any) -> Any:
        self._look_at(request)
        return go_on(call, request)

    def intercept_unary_stream(self, go_on: Callable[..., Any], call: Any, request: Any) -> Any:
        self._look_at(request)
        return go_on(call, request)

    def _look_at(self, request: Any) -> None:
        if isinstance(request, base_pb2.ConfigRequest):
            self._settings(request.operation)
        elif isinstance(request, base_pb2.AnalyzePlanRequest):
            self._refuse_if(request.WhichOneof("analyze") == "persist", "PERSIST TABLE")
        elif isinstance(request, base_pb2.ExecutePlanRequest):
            self._command(request.plan.command)
            catalog = request.plan.root.catalog.WhichOneof("cat_type")
            self._refuse_if(catalog == "cache_table", "CACHE TABLE")

    def _settings(self, operation: base_pb2.ConfigRequest.Operation) -> None:
        named = [pair.key for pair in operation.set.pairs]
        named += operation.unset.keys
        read = [*operation.get.keys, *operation.get_option.keys]
        read += [pair.key for pair in operation.get_with_default.pairs]
        named += [key for key in read if not key.startswith(_OF_PYSPARK)]
        for key in named:
            self._setting(key)

    def _setting(self, key: str) -> None:
        if key not in SETTABLE:
            self._refuse(f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available.")

    def _command(self, command: commands_pb2.Command) -> None:
        kind = command.WhichOneof("command_type")
        if kind == "write_stream_operation_start":
            trigger = command.write_stream_operation_start.WhichOneof("trigger")
            if trigger not in _STARTS:
                problem = f"Trigger type {trigger} is not supported for this cluster type."
                self._refuse(f"[INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED] {problem}")
        elif kind == "sql_command" and (match := _SET.match(command.sql_command.input.sql.query)):
            self._setting(match[1])
        self._refuse_if(kind == "checkpoint_command", "CHECKPOINT")

    def _refuse_if(self, is_so: bool, what: str) -> None:  # noqa: FBT001 - a condition
        if is_so:
            self._refuse(f"[NOT_SUPPORTED_WITH_SERVERLESS] {what} is not supported.")

    def _refuse(self, problem: str) -> None:
        self.refused.append(problem)
        raise AnalysisException(problem)


def serverless_session(address: str, rules: ServerlessRules) -> SparkSession:
    """A new session whose requests are held against the rules."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    builder = DefaultChannelBuilder(address)
    builder.add_interceptor(rules)  # type: ignore[arg-type]
    return ConnectSession.builder.channelBuilder(builder).create()
