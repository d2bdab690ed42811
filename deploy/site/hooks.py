"""What the site has beside docs/: the home page, the API reference, files that pages link to.

A page of docs/ that is in no part of the table stands under "More", so that it is never lost.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STYLES = Path(__file__).with_name("txmq.css")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".conf": "properties"}
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"^( *```).*?^\1$", re.MULTILINE | re.DOTALL)

# By task, in the order in which a newcomer reads. Pages that are not there are left out.
PARTS = {
    "Begin": ("why.md", "start.md", "install.md", "comparison.md", "from_rocketmq.md"),
    "Guides": (
        "messages.md", "listeners.md", "consumers.md", "topics.md", "typed_topics.md",
        "testing.md", "hooks_and_trace.md", "encryption.md", "erasure.md",
    ),
    "Operate": (
        "commands.md", "places.md", "databricks.md", "sizing.md", "monitoring.md", "dashboard.md",
        "runbook.md", "security.md", "rights.md", "backup.md", "upgrade.md",
    ),
    "Trust": (
        "invariants.md", "faults.md", "benchmarks.md", "performance.md", "behaviours.md",
        "rocketmq_tests.md",
    ),
    "Understand": ("architecture.md", "where_to_change.md", "glossary.md"),
}  # fmt: skip
FOLDERS = {"Recipes": "recipes", "Model": "model", "Decisions": "decisions"}
OF_TOP = {"Changes": "CHANGELOG.md", "Contribute": "CONTRIBUTING.md", "Security": "SECURITY.md"}
API = {
    "Sending": (
        "Store", "Config", "TransactionProducer", "AsyncTransactionProducer", "Transaction",
        "AsyncTransaction", "BatchTransactions", "Message", "DelayLevel", "SendResult",
        "TransactionSendResult", "TransactionState", "LocalTransactionState",
    ),
    "Answering checks": (
        "DeltaListener", "DatabaseListener", "JdbcListener", "QueryListener", "HttpListener",
        "TransactionListener", "SetListener", "ArrowSetListener", "HalfMessage",
    ),
    "Reading": (
        "PullConsumer", "Consumer", "ReceivedMessage", "ConsumeFromWhere", "ConsumeMode",
        "ConsumeStatus", "SendBack", "DatabaseInbox", "DeltaInbox", "ConsumerLag",
    ),
    "Running": (
        "Broker", "BrokerHandle", "Publisher", "CheckService", "RecheckJob", "DelayService",
        "Maintenance", "CatalogTables", "MetricsService", "MetricsEndpoint", "local_session",
        "run_until_signal",
    ),
    "Operating": (
        "Admin", "Operator", "Topics", "TopicKind", "TopicSettings", "ConsumerGroups",
        "DeadLetters", "MessageQuery", "FoundMessage", "verify",
    ),
    "Hooks": (
        "SendMessageHook", "EndTransactionHook", "CheckForbiddenHook", "OperationHook", "Operation",
        "OperationName", "RunningOperation", "SendContext", "EndContext", "TraceHook",
        "OpenTelemetryHook", "OpenTelemetryMetrics",
    ),
}  # fmt: skip


def on_config(config: Any) -> Any:
    """Name the pages in their order."""
    linked = {name for parts in PARTS.values() for name in parts}
    more = [path.name for path in sorted(DOCS.glob("*.md")) if path.name not in linked]
    nav: list[Any] = [{"txmq": "index.md"}]
    for title, names in PARTS.items():
        nav.append({title: [name for name in names if (DOCS / name).exists()]})
    nav.append({"API": [{title: _api_page(title)} for title in [*API, "More names", "Errors"]]})
    for title, folder in FOLDERS.items():
        pages = [path.relative_to(DOCS).as_posix() for path in sorted((DOCS / folder).glob("*.md"))]
        pages.sort(key=lambda page: not page.endswith("README.md"))
        nav += [{title: pages}] if pages else []
    about = [{title: f"about/{name}"} for title, name in OF_TOP.items()]
    config.nav = [*nav, {"More": [*more, *about]}]
    fences = config.mdx_configs["pymdownx.superfences"]["custom_fences"]
    fences.append({"name": "mermaid", "class": "mermaid", "format": _diagram})
    return config


def _diagram(source: str, *_arguments: Any, **_options: Any) -> str:
    """In a frame of its own, for a narrow screen scrolls a diagram and does not shrink it."""
    return f'<div class="diagram"><pre class="mermaid"><code>{escape(source)}</code></pre></div>'


def on_files(files: Files, config: Any) -> Files:
    """Add what is not in docs/."""
    _add(files, config, "index.md", (ROOT / "README.md").read_text("utf-8"), source="README.md")
    for name in OF_TOP.values():
        _add(files, config, f"about/{name}", (ROOT / name).read_text("utf-8"), source=name)
    for title, text in _api_pages().items():
        _add(files, config, _api_page(title), text)
    for path in sorted(_linked_files(files)):
        _add(files, config, _page_of_file(path), _shown(path))
    _add(files, config, "stylesheets/txmq.css", STYLES.read_text("utf-8"))
    mermaid = ROOT / os.environ.get("MERMAID", "no such file")
    if mermaid.is_file():
        files.append(File.generated(config, "javascripts/mermaid.js", abs_src_path=str(mermaid)))
        config.extra_javascript.append("javascripts/mermaid.js")
    return files


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """Let links lead to the pages of the site."""
    return _with_links(markdown, _source_of(page.file.src_uri), page.file.src_uri)


def _add(files: Files, config: Any, uri: str, text: str, source: str | None = None) -> None:
    if source is not None:
        _SOURCES[uri] = source
    files.append(File.generated(config, uri, content=text))


# The place in the clone of pages that are not below docs/.
_SOURCES: dict[str, str] = {}


def _source_of(uri: str) -> str:
    return _SOURCES.get(uri, f"docs/{uri}")


def _with_links(text: str, source: str, uri: str) -> str:
    """Rewrite the links outside of code."""
    parts, end = [], 0
    for code in FENCE.finditer(text):
        parts += [_linked(text[end : code.start()], source, uri), code[0]]
        end = code.end()
    return "".join([*parts, _linked(text[end:], source, uri)])


def _linked(text: str, source: str, uri: str) -> str:
    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        place = posixpath.relpath(_page_of(target), posixpath.dirname(uri) or ".")
        return f"{found[1]}{place}{found[3]}"

    return LINK.sub(lead, text)


def _page_of(path: str) -> str:
    """Return the page of the site for a file of the clone."""
    for uri, source in _SOURCES.items():
        if source == path:
            return uri
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _page_of_file(path)


def _page_of_file(path: str) -> str:
    return f"files/{path}.md"


def _linked_files(files: Files) -> set[str]:
    """Files of the clone, outside docs/, that a page links to."""
    found = set()
    for file in files.documentation_pages():
        source = _source_of(file.src_uri)
        for link in LINK.finditer(FENCE.sub("", file.content_string)):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
            outside = not path.startswith("docs/") and path not in _SOURCES.values()
            if outside and (ROOT / path).is_file():
                found.add(path)
    return found


def _shown(path: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n"


def _api_page(title: str) -> str:
    return f"api/{title.lower().replace(' ', '_')}.md"


def _api_pages() -> dict[str, str]:
    """Make a page for each part, one for names that no part has, one for errors."""
    homes = _homes()
    placed = {name for names in API.values() for name in names}
    parts = {**API, "More names": tuple(sorted(set(homes) - placed))}
    pages = {title: _reference(title, [f"{homes[name]}.{name}" for name in names])
             for title, names in parts.items()}  # fmt: skip
    errors = _directive("txmq.errors") + "    options:\n      members_order: alphabetical\n"
    pages["Errors"] = f"# Errors\n\nEach of them is a `TxmqError`.\n\n{errors}"
    return pages


def _homes() -> dict[str, str]:
    """Return the module of each public name but errors, read without importing the package."""
    stub = ast.parse((ROOT / "txmq" / "__init__.pyi").read_text("utf-8"))
    return {
        name.name: statement.module
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for name in statement.names
        if statement.module not in {"txmq", "txmq.errors", "txmq.ground.version"}
    }


def _reference(title: str, names: list[str]) -> str:
    return f"# {title}\n\n" + "\n".join(_directive(name) for name in names)


def _directive(name: str) -> str:
    return f"::: {name}\n"
