"""Files: settings, policies, tokens, workflows, ledgers and the memory of a guarded file."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from fuzzing.call_count import costs_what_it_is_charged
from fuzzing.target import Target, argument, parted, refused, whole
from holdfast.cli.output import audit
from holdfast.cli.output.screen import printable
from holdfast.cli.server.http_server import tokens_in
from holdfast.core.history.events import Record
from holdfast.core.history.holds import held_at, holds, lost
from holdfast.core.history.invariants import check, described
from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadExpression, BadInput, ExpressionFailed, FencedOut, HoldfastError
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.files import GuardedFiles
from holdfast.guards.files.names import generation_name
from holdfast.observe.ledger.codec import Damaged, Remark, line, parse, parse_block
from holdfast.observe.ledger.reader import Findings, load, read
from holdfast.plane.settings import edit
from holdfast.plane.settings.settings import KEYS
from holdfast.plane.settings.sources import BadSettings
from holdfast.plane.settings.sources import load as load_settings
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.definition_codec import as_document, from_document
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.plane.workflows.expressions import check_expression, evaluate, problems_in, render
from holdfast.plane.workflows.files import load_workflow
from holdfast.runtime import policy_switch as policy_editing
from holdfast.runtime.policy_switch import read_policy_file

FOLDER: Final = Path(tempfile.mkdtemp(prefix="hf-fuzz-"))


def cleared() -> None:
    """Take away what the targets have written. For drivers, when they end."""
    shutil.rmtree(FOLDER, ignore_errors=True)


def _file(name: str, data: bytes) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / name
    path.write_bytes(data)
    return path


def settings_file(data: bytes) -> None:
    """A `holdfast.toml`. All problems are reported together."""
    path = _file("holdfast.toml", data)
    try:
        settings = load_settings(path, environment={})
    except BadSettings as error:
        refused(error)
        for each in error.problems:
            refused(each)
    else:
        json.dumps(settings.shown(), allow_nan=False).encode()
        assert all(settings.value(name) is None or KEYS[name].kind.shown(settings.value(name)) != "" for name in KEYS)
    _edited(data)


def _edited(data: bytes) -> None:
    """A number is changed in it, or it is left alone."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        after = edit.edited(text, {"scheduler.job_ttl": 24.0, "grace": 3.5})
    except BadInput as error:
        refused(error)
    else:
        assert edit.edited(after, {"scheduler.job_ttl": 24.0, "grace": 3.5}) == after


def environment(data: bytes) -> None:
    """Variables, one on a line."""
    pairs = [each.partition("=") for each in argument(data).split("\n")]
    variables = {f"HOLDFAST_{name.upper()}": value for name, mark, value in pairs if mark}
    variables.pop("HOLDFAST_CONFIG", None)
    try:
        load_settings(environment=variables, directory=FOLDER / "none")
    except BadSettings as error:
        for each in error.problems:
            refused(each)


def policy_file(data: bytes) -> None:
    """A policy file. It is read when a store is down: then an unexpected error would be worst."""
    path = _file("policy.toml", data)
    try:
        policy = read_policy_file(path)
    except BadInput as error:
        refused(error)
    else:
        assert all(isinstance(mode, OnError) for mode in policy.classes.values())
        assert policy.on_error("never named") is OnError.FAIL_CLOSED
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        policy_editing.edited(text, "high", OnError.WAIT)
    except BadInput as error:
        refused(error)


def token_file(data: bytes) -> None:
    """Who may ask the API."""
    try:
        entries = tokens_in(str(_file("tokens.toml", data)))
    except BadInput as error:
        refused(error)
        return
    assert entries
    assert all(entry.roles and entry.digest for entry in entries)


def workflow_file(data: bytes) -> None:
    """A definition in YAML and in JSON. One that is taken is the same after being written down and read again."""
    for name in ("flow.yaml", "flow.json"):
        try:
            workflow = load_workflow(_file(name, data))
        except (BadWorkflow, BadInput) as error:
            refused(error)
            continue
        _survives(workflow)


def _survives(workflow: Workflow) -> None:
    document = as_document(workflow)
    text = json.dumps(document, allow_nan=False)
    text.encode()
    assert from_document(json.loads(text)) == workflow


def expression(data: bytes) -> None:
    """Texts of a workflow, and what they read: the second part is JSON, if it is any."""
    words, names = parted(data, 2)
    text = words.decode("utf-8", "surrogatepass") if _utf8(words) else argument(words)
    try:
        known = {"input": json.loads(names or b"null"), "steps": {"a": {"output": [1, "x"]}}, "item": 1}
    except (ValueError, RecursionError):
        known = {"input": [3, {"a": "b"}, 1.5, None], "steps": {}, "item": "é"}
    for act in (evaluate, render):
        try:
            found = act(text, known)
        except (BadExpression, ExpressionFailed) as error:
            refused(error)
        else:
            json.dumps(found, allow_nan=False).encode()
            assert act(text, known) == found
    try:
        check_expression(text)
    except BadExpression as error:
        refused(error)
    for _, problem in problems_in([text]):
        refused(problem)


def expression_cost(data: bytes) -> None:
    """The same texts over large values: the calls that they make are charged, whatever they do."""
    words, names = parted(data, 2)
    text = words.decode("utf-8", "surrogatepass") if _utf8(words) else argument(words)
    try:
        own = json.loads(names or b"null")
    except (ValueError, RecursionError):
        own = None
    known = {"input": {**_LARGE, "own": own}, "item": _LARGE["list"], "steps": {"a": {"output": _LARGE}}}
    costs_what_it_is_charged(lambda budget: evaluate(text, known, budget))
    costs_what_it_is_charged(lambda budget: render({"a": [text, text], "b": f"x{text}"}, known, budget))


_LARGE: Final[dict[str, Any]] = {
    "list": [None] * 5_000,
    "lists": [[1], {"a": 2}] * 2_000,
    "table": {f"key-{number}": number for number in range(3_000)},
    "text": "a, " * 20_000,
}


def _utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def ledger(data: bytes) -> None:
    """A file of a ledger: every line is read or reported, one by one and together alike, and all of it can be shown."""
    path = _file("a.0.jsonl", data)
    findings, again = Findings(), Findings()
    records = load(path, None, findings)
    assert list(read(path, None, again)) == records
    assert (findings.records, findings.damaged) == (again.records, again.damaged)
    lines = [raw for raw in data.split(b"\n") if raw]
    for raw, entry in zip(lines, parse_block(lines), strict=True):
        _one_line(raw, entry)
    for record in records:
        _shown(described(record), audit.told(record))
    for found in check(records):
        _shown(found.text, json.dumps(audit.violation(found)))
    for each in (*holds(records), *lost(records)):
        _shown(audit.ending(each), audit.takeover(each), *audit.autopsy(each))
        json.dumps(audit.as_dict(each))
        held_at([each], each.since_ns)
    for each in lost(records):
        _shown(audit.loss_line(each))


def _one_line(raw: bytes, entry: Record | Remark | Damaged) -> None:
    try:
        alone: Record | Remark | None = parse(raw)
    except Damaged:
        alone = None
    assert alone == (None if isinstance(entry, Damaged) else entry)
    if isinstance(alone, Record) and alone.facts is None and len(raw) < 1_000:
        assert parse(line(alone).rstrip(b"\n"), sums=True) == alone


def _shown(*texts: str) -> None:
    for text in texts:
        printable(text).encode("utf-8")


def generation(data: bytes) -> None:
    """The memory of a guarded file. A damaged one admits no holder; an intact one, no older holder."""
    shutil.rmtree(FOLDER / "guarded", ignore_errors=True)
    (FOLDER / "guarded").mkdir(parents=True)
    _file(f"guarded/{generation_name('note.txt')}", data)
    guard: GuardedFiles[CarriedFence] = GuardedFiles(FOLDER / "guarded")
    try:
        seen = guard.seen("note.txt")
    except HoldfastError as error:
        refused(error)
        seen = None
    if seen is not None:
        whole(seen, 0, FENCE_MAX)
    stale: FencedOut | None = None
    try:
        guard.write(CarriedFence("note", 5), "note.txt", b"five")
    except FencedOut as error:
        stale = error
    except HoldfastError as error:
        refused(error)
        return
    if stale is not None:
        assert seen is not None
        assert stale.seen == seen > 5
    else:
        assert seen is None or seen <= 5
        assert guard.seen("note.txt") == 5
        assert (FOLDER / "guarded" / "note.txt").read_bytes() == b"five"


_TOML: Final = (
    b"[risk]\n",
    b'low = "fail_open"',
    b"[scheduler]\njob_ttl = 60\n",
    b"[[tokens]]\n",
    b"0xffffffff",
    b"nan",
)
_MORE_TOML: Final = (b"'''", b'"""', b"1979-05-27", b"{a=1}", b"[" * 50, b"\xef\xbb\xbf", b"\\U0010ffff", b"= inf\n")
_FLOW: Final = (
    b"name: a\nsteps:\n  b:\n    kind: job\n",
    b"${ input.a }",
    b"&a ",
    b"*a",
    b"!!python/object:os.system ",
)
_MORE_FLOW: Final = (
    b'"\\ud800"',
    b'"\\UFFFFFFFF"',
    b"%YAML 1.2\n---\n",
    b"<<: ",
    b"? ",
    b"- " * 40,
    b'{"name":',
    b"...",
)
_WORDS: Final = (
    b"input",
    b"steps.a.output",
    b" for x in ",
    b"range(",
    b"if",
    b" else ",
    b"\n--\n",
    b"**",
    b"1e308",
    b"[0]",
)
_LINES: Final = (b'{"kind":"granted","at_ns":1,"key":"a","fence":1,"owner":"o"}\n', b',"crc":"', b'{"ledger":"opened"')
_MORE_LINES: Final = (b'"facts":{', b'"kind":"lost"', b'"kind":"write"', b"NaN", b"-1", b"9" * 400, b'"until_ns":')
_GENERATION: Final = (
    b"holdfast-fence 1 none 6b6e0c1f",
    b"holdfast-fence 1 ",
    b"9223372036854775807",
    b"\0" * 4_032,
    b"\n",
)

TARGETS: Final = (
    Target("settings-file", settings_file, "settings, or all that is wrong with them", (*_TOML, *_MORE_TOML)),
    Target("environment", environment, "settings, or all that is wrong", (b"DATABASE=", b"GRACE=", b"\nAPI_PORT=")),
    Target("policy-file", policy_file, "a mode for each class; what is not named fails closed", (*_TOML, *_MORE_TOML)),
    Target(
        "token-file", token_file, "tokens with roles, or refused", (*_TOML, b"digest = ", b"roles = [", *_MORE_TOML)
    ),
    Target("workflow-file", workflow_file, "a workflow that survives, or all that is wrong", (*_FLOW, *_MORE_FLOW)),
    Target("expression", expression, "a value of plain JSON, or one of two errors", _WORDS),
    Target("expression-cost", expression_cost, "no more calls than were charged", _WORDS),
    Target("ledger", ledger, "every line is read or reported, and can be shown", (*_LINES, *_MORE_LINES)),
    Target("generation-file", generation, "no older fence gets in", _GENERATION),
)
