"""Normalises the location of a store: one name for one place, however a user writes it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote

from txmq.errors import ConfigError, StoreFormatError, shown

# Object stores that put a file only where there is none.
SCHEMES = ("s3", "s3a", "abfss", "abfs", "az", "azure", "adl", "gs")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/", re.ASCII)
# Mounts of Databricks: they can neither link nor rename, so no commit can be put there once.
_MOUNTED = re.compile(r"/(Volumes|dbfs)(/|$)|dbfs:", re.ASCII)
_CATALOG_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}", re.ASCII)
# delta-rs decodes % twice, so that its folder differs from Spark's. The others make it panic.
_BENDS_PATHS = re.compile(r"[%\\^|\[\]\x00-\x1f\x7f\ud800-\udfff]")


def plain_location(location: str | os.PathLike[str]) -> str:
    """The location as an absolute path without links, or as a URI without a trailing slash.

    Raises: ConfigError.
    """
    unchecked: object = location
    text = os.fspath(unchecked) if isinstance(unchecked, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError([f"location must be a path or a URI, not {shown(location)}"])
    if _MOUNTED.match(text) and sys.platform != "darwin":
        problem = (
            "cannot hold a store: volumes and DBFS have neither links nor renames; use the URI of "
            "an external location (s3://, abfss://, gs://), or a folder of a disk"
        )
        raise ConfigError([f"location {shown(text)} {problem}"])
    if text.lower().startswith("file:"):
        return _absolute(unquote(_path_of_file_uri(text)), text)
    if _CATALOG_NAME.fullmatch(text):
        problem = "is the name of a catalog, which txmq cannot use; for a folder write ./name"
        raise ConfigError([f"location {shown(text)} {problem}"])
    if text == "~" or text.startswith("~/"):
        problem = "begins with ~, which only a shell replaces; write the whole path, or ./~"
        raise ConfigError([f"location {shown(text)} {problem}"])
    if _SCHEME.match(text) is None:
        return _absolute(text, text)
    if text.partition(":")[0].lower() not in SCHEMES:
        problem = f"has a scheme that txmq cannot use; known are {', '.join(SCHEMES)} and file"
        raise ConfigError([f"location {shown(text)} {problem}"])
    if not text.partition("://")[2].strip("/"):
        raise ConfigError([f"location {shown(text)} must be a path or scheme://bucket/folder"])
    return _checked(text, text).rstrip("/")


def check_folder(location: str) -> None:
    """Refuse a path that is a file or leads through one. Raises: StoreFormatError."""
    for place in (Path(location), *Path(location).parents):
        if place.is_file():
            raise StoreFormatError(location, f"{place} is a file; give a folder")


def _path_of_file_uri(text: str) -> str:
    rest = text[len("file:") :]
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise ConfigError(
            [f"location {shown(text)} names the host {shown(host)}; use file:///path"]
        )
    return slash + path


def _absolute(path: str, text: str) -> str:
    absolute = os.path.realpath(_checked(path, text))
    return "/" + _checked(absolute, text).lstrip("/")


def _checked(path: str, text: str) -> str:
    if not path or _BENDS_PATHS.search(path):
        problem = "must name a folder, without % \\ ^ | [ ] and control characters"
        raise ConfigError([f"location {shown(text)} {problem}"])
    return path
