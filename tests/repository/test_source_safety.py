"""What the source never does: put values into statements or scripts, run input, or fetch addresses of users.

Read from the syntax tree, so that a comment or a text cannot hide anything. Where something has to be there, it stands
in a list with its reason; a line that is not needed any more fails as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.source_tree import PACKAGE, modules, shown, tree

_SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|GRANT|REVOKE|PRAGMA|WITH|TRUNCATE|SAVEPOINT|ATTACH|REPLACE|LOCK|COPY|"
    r"LISTEN|NOTIFY|UNLISTEN|WHERE|SET|VALUES|FROM|EXECUTE)\s+\S",
    re.DOTALL,
)
_SENDS = {"execute", "executemany", "executescript", "query", "eval", "evalsha", "execute_command"}

# What is put into the text of a statement. Names come from `guards.sql.identifiers`, which checks and quotes them; the
# rest is made of our own constants, or counts places.
PUT_IN: dict[str, set[str]] = {
    "drills/verdict/account.py": {"_SQL.read_text(encoding='utf-8')", "sql('ledger_sqlite')"},
    "drills/env/plane.py": {"_PLACES"},  # as many as there are states
    "drills/env/postgres.py": {"quoted(_schema(name))"},
    "guards/install/postgres.py": {"names.ledger_sql", "comparison"},
    "guards/install/sqlite.py": {"LEDGER_TABLE"},
    "guards/install/migration.py": {
        *("found.names.sql", "quoted(found.names.fence_column)", "quoted(name)", "FENCE_TYPES[found.engine]"),
        *("quoted(found.names.schema or '')", "quoted(function)", "found.names.ledger_sql", "found.names.table"),
        *("MARK_TABLE", "where"),
    },
    "guards/sql/statements.py": {
        *("self._names.sql", "_listed(columns)", "', '.join(places)", "_listed(self._names.id_columns)", "self._where"),
        *("self._rules[rule]", "ledger", "place('place')", "place('resource')", "place('fence')", "MADE_AT"),
        *("self._names.ledger_sql", "self._entry"),
    },
    "guards/install/target.py": {
        *("COPY", "listed", "self.names.sql", "self._where", "self.names.ledger_sql", "columns", "places", "ids"),
        *("present", "self._fence_name"),
    },
    "guards/install/triggers.py": {
        *("LEDGER_TABLE", "MARK_TABLE", "_literal(names.table)", "_sqlite_id(names, 'held.')", "fence", "names.sql"),
        *("same", "_each(names, 'held.{0} IS NEW.{0}', ' AND ')", "_sqlite_id(names, 'NEW.')", "quoted(name)"),
        *("quoted(trigger)", "event", "function"),
    },
    "plane/db/postgres/notify.py": {"CHANNEL"},
    "plane/db/postgres/combined_statement.py": {"number", "check"},  # of a part, and of its rows
    "plane/db/sqlite/connection.py": {
        "self._synchronous",
        "'OFF' if self._writes else 'ON'",
    },  # words that were checked
    "stores/sqlite/connection.py": {"self.synchronous"},
    "stores/postgres/listener.py": {"self.channel"},
}

RUNS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.loads", "pickle.load"}
LOADS = {"load", "load_all", "full_load", "unsafe_load", "full_load_all", "unsafe_load_all"}
UNPACKS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "xml"}
ASKS = {"urllib.request", "http.client", "httpx", "requests", "aiohttp", "urllib3"}

# Who may unpickle, and who may ask a server over HTTP, and why.
UNPICKLES = {"guards/conformance/subprocesses.py": "the kit talks to processes that it has started, over their pipes"}
FETCHES = {
    "drills/incidents/fleet.py": "a drill, of the API that it has started itself",
    "drills/env/store_servers.py": "a drill asks the servers that it has started on this host",
    "guards/httpx.py": "the caller's own client, under a guard",
    "guards/requests.py": "the caller's own client, under a guard",
    "plane/client/http_transport.py": "the client of a program that names the address of an API; no process of a plane",
    "ops/http_client.py": "commands that ask a Prometheus which the person at the shell names",
}


Node = ast.JoinedStr | ast.BinOp | ast.Call | ast.Compare | ast.Import | ast.ImportFrom | ast.Constant


@cache
def nodes() -> tuple[tuple[str, Node], ...]:
    """Everything in the source that could be of interest here, found in one walk."""
    found: list[tuple[str, Node]] = []
    for path in modules():
        name = path.relative_to(PACKAGE).as_posix()
        found += [(name, node) for node in ast.walk(tree(path)) if isinstance(node, Node)]
    return tuple(found)


def put_together(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """The beginning of a text that is put together, and what is put into it."""
    if isinstance(node, ast.JoinedStr):
        filled = [each.value for each in node.values if isinstance(each, ast.FormattedValue)]
        first = node.values[0] if node.values else None
        return (str(first.value) if isinstance(first, ast.Constant) else "", filled) if filled else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        sides = [each for each in (node.left, node.right) if not _is_text(each)]
        text = node.left.value if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str) else None
        return (text, sides) if text is not None and sides else None
    called = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if called is not None and _is_text(called.value) and called.attr in {"format", "format_map", "join", "replace"}:
        given = [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else []
        return ast.literal_eval(called.value), given
    return None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def statements() -> Iterator[tuple[str, int, str]]:
    """Where something is put into a statement: file, line, what."""
    for name, node in nodes():
        made = put_together(node)
        if made is not None and _SQL.match(made[0]):
            yield from ((name, node.lineno, ast.unparse(each)) for each in made[1])
        sends = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SENDS
        if sends and isinstance(node, ast.Call) and node.args and (sent := put_together(node.args[0])) is not None:
            yield from ((name, node.lineno, ast.unparse(each)) for each in sent[1])


@pytest.mark.threat("X6")
def test_no_value_is_put_into_the_text_of_a_statement() -> None:
    found = list(statements())
    wrong = [f"{name}:{line} {what}" for name, line, what in found if what not in PUT_IN.get(name, set())]
    assert wrong == []
    used = {(name, what) for name, _, what in found}
    assert {(name, what) for name, allowed in PUT_IN.items() for what in allowed} <= used, "a line is not needed"


@pytest.mark.threat("X6")
def test_scripts_are_files_and_are_sent_as_they_are() -> None:
    scripts = sorted(PACKAGE.glob("**/*.lua"))
    assert len(scripts) > 10
    for name, node in nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(r"redis\.p?call\s*\(", node.value), f"{name}:{node.lineno} has a script in it"
    for path in scripts:
        text = path.read_text("utf-8")
        assert not re.search(r"\b(loadstring|load|dofile|setfenv)\b\s*[({'\"]", text), shown(path)
        for call in re.findall(r"redis\.p?call\(\s*([^,)]+)", text):
            assert re.fullmatch(r"'[A-Z]+'", call), f"{shown(path)} computes a command: {call}"


@pytest.mark.threat("X6")
def test_a_script_touches_no_key_that_it_was_not_given() -> None:
    """A key that stands in the text would escape the server's own rules about who may touch what."""
    for path in sorted(PACKAGE.glob("**/*.lua")):
        text = re.sub(r"--[^\n]*", "", path.read_text("utf-8"))
        for command, key in re.findall(r"redis\.p?call\('([A-Z]+)',\s*([^,)]+)", text):
            if command not in {"TIME", "PUBLISH"}:
                assert re.fullmatch(r"KEYS\[[\w +*-]+\]|[a-z_]+", key.strip()), f"{shown(path)}: {command} {key}"


@pytest.mark.threat("X16")
def test_nothing_that_is_read_is_run() -> None:
    wrong = []
    for name, node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = ast.unparse(node.func) if _is_short(node.func) else ""
            loads = called.startswith("yaml.") and called.partition(".")[2] in LOADS
            shell = any(each.arg == "shell" and ast.unparse(each.value) != "False" for each in node.keywords)
            if (called in RUNS and name not in UNPICKLES) or loads or shell:
                wrong.append(f"{name}:{node.lineno} {called}")
    assert wrong == []
    assert {name for name, _, _ in imported(UNPACKS)} == set(UNPICKLES)


@pytest.mark.threat("X13")
def test_no_process_of_the_plane_can_fetch_an_address() -> None:
    found = {name for name, _, _ in imported(ASKS)}
    assert found == set(FETCHES)
    for name, line, module in imported({"holdfast.ops.http_client"}):
        assert name.startswith(("ops/", "cli/commands/tune.py")), f"{name}:{line} {module}"
    reach = {name for name, _, module in imported({"holdfast.plane.client.http_transport"})}
    assert reach == {"plane/client/client.py"}
    reach = {name for name, _, module in imported({"holdfast.guards.httpx", "holdfast.guards.requests"})}
    assert not {each for each in reach if each.startswith(("plane/", "web/", "observe/", "cli/"))}


# Where a secret, or what is kept of one, is compared by the operator, and why that reveals nothing.
_SECRET = re.compile(r"token|secret|password|digest|credential|ticket", re.IGNORECASE)
COMPARED: dict[str, str] = {
    "plane/workflows/definitions.py": "digests of workflows, which are no secrets",
    "plane/resources/locks.py": "digests of tokens: the time reveals at most the digest, not the token",
    "plane/db/statements.py": "a word of a statement",
    "stores/sqlite/notify_socket.py": "a constant of the socket interface",
    "stores/memory/table.py": "one process, which holds all tokens itself; see docs/security.md",
    "stores/redis/store.py": "our own token in the answer to our own question",
    "stores/redis/lock_value.py": "the mark of a key without a holder",
    "stores/sqlite/lease_table.py": "digests of tokens and tickets",
    "testing/conformance/environment.py": "a simulated world",
}


@pytest.mark.threat("X1")
def test_what_somebody_else_has_sent_is_compared_with_a_secret_in_constant_time() -> None:
    found = set()
    for name, node in nodes():
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            sides = [each for each in (node.left, *node.comparators) if isinstance(each, _NAMED)]
            if any(_SECRET.search(ast.unparse(each)) for each in sides):
                found.add(name)
    assert found == set(COMPARED)
    assert "hmac.compare_digest(digest, given)" in (PACKAGE / "web" / "middleware" / "auth.py").read_text("utf-8")


_NAMED = ast.Name | ast.Attribute | ast.Subscript


def _is_short(called: ast.Name | ast.Attribute) -> bool:
    """`name` or `module.name`."""
    return isinstance(called, ast.Name) or isinstance(called.value, ast.Name)


def imported(wanted: set[str]) -> Iterator[tuple[str, int, str]]:
    """Who imports what, by the module or the package that it is in."""
    for name, node in nodes():
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or "", *(f"{node.module}.{each.name}" for each in node.names)]
        for each in names:
            if any(each == one or each.startswith(f"{one}.") for one in wanted):
                yield name, node.lineno, each


def test_the_search_finds_what_it_is_for() -> None:
    cases = {
        'f"SELECT * FROM t WHERE a = {value}"': ["value"],
        '"DELETE FROM t WHERE a = %s" % value': ["value"],
        '"INSERT INTO t VALUES (" + value': ["value"],
        '"SELECT {}".format(value)': ["value"],
        '"SELECT 1"': None,
        'f"SELECT 1"': None,
    }
    for text, expected in cases.items():
        made = put_together(ast.parse(text, mode="eval").body)
        assert (made and [*map(ast.unparse, made[1])]) == expected
        if made:
            assert _SQL.match(made[0])
    assert Path(PACKAGE).is_dir()
