"""Workflows in files: what is read, and that whatever is wrong is told with the step, the line and the column."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.plane import BadWorkflow, load_workflow, parse_workflow
from holdfast.plane.workflows.core.definition import StepKind
from holdfast.plane.workflows.core.definition_codec import as_document
from holdfast.plane.workflows.source import UnreadableSource, read_json
from holdfast.plane.workflows.yaml_source import read_yaml
from pages import blocks

PAGE = Path(__file__).resolve().parents[4] / "docs" / "workflows.md"

REFUND = """\
name: refund
risk: high
inputs: {id: text, amount: {type: number, default: 10}}
steps:
  fetch:
    topic: crm.fetch
    input: {id: "${ input.id }"}
  agreed: {after: fetch, message: "Refund ${ input.amount }?", timeout: 1h}
  pay:
    topic: bank.pay
    after: [agreed]
    when: >
      steps.agreed.output.approved
      and input.amount > 0
    retry: 3
"""


def refused(text: str, name: str = "w.yaml") -> list[str]:
    with pytest.raises(BadWorkflow) as caught:
        parse_workflow(text, name, form="json" if name.endswith(".json") else "yaml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json", "JSON"])
def test_a_file_is_a_workflow(suffix: str, tmp_path: Path) -> None:
    expected = parse_workflow(REFUND)
    path = tmp_path / f"refund.{suffix}"
    path.write_text(
        REFUND if suffix.startswith("y") else "\ufeff" + json.dumps(as_document(expected)), encoding="utf-8"
    )
    workflow = load_workflow(path)
    assert workflow == load_workflow(str(path)) == expected
    assert [step.kind for step in workflow.steps.values()] == [StepKind.JOB, StepKind.APPROVAL, StepKind.JOB]
    assert workflow.steps["pay"].when == "steps.agreed.output.approved and input.amount > 0\n"


def test_everything_that_is_wrong_has_its_line_and_its_column() -> None:
    wrong = """\
name: refund
inputs: {amount: {type: number, default: much}}
steps:
  fetch: {topic: crm.fetch, input: {id: "${ input.id + }"}}
  pay:
    topic: bank.pay
    tipic: bank.pay
    after: [fetch, agreed]
    timeout: 5 parsecs
    when: 'steps.later.output and item'
    timeout: 6
  later: {delay: 5, after: pay}
"""
    assert [line.rpartition("; ")[0] for line in refused(wrong, "w.yaml")] == [
        "w.yaml:2:33: inputs.amount.default: is a text, and not number",
        "w.yaml:4:55: step 'fetch': input.id: ends too early",
        "w.yaml:7:5: step 'pay': tipic: there is no field 'tipic'",
        "w.yaml:8:20: step 'pay': after[1]: there is no step 'agreed'",
        "w.yaml:9:5: step 'pay': timeout: '5 parsecs' is not a length of time",
        "w.yaml:10:5: step 'pay': when: there is no item here",
        "w.yaml:10:5: step 'pay': when: reads step 'later', which may not have finished by then",
        "w.yaml:11:5: step 'pay': timeout: stands there twice",
    ]


def test_a_json_file_is_told_its_places_too() -> None:
    text = '{"name": "w",\n "steps": {\n  "a": {"topic": "t", "when": "1 +", "topic": "u",\n   "aftr": []}}}'
    assert refused(text, "w.json") == [
        "w.json:3:35: step 'a': when: ends too early; see the table of expressions in the documentation",
        "w.json:3:38: step 'a': topic: stands there twice; keep one",
        "w.json:4:4: step 'a': aftr: there is no field 'aftr'; did you mean after?",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "w.yaml:1:1: is empty; write name and steps"),
        ("# nothing", "w.yaml:1:1: is empty; write name and steps"),
        ("[1]", "w.yaml:1:1: a list stands where a table belongs; write name, version, description, …"),
        ("name: &x w", "w.yaml:1:7: anchors (&) and aliases (*) are not taken; write it out"),
        ("name: *x", "w.yaml:1:7: anchors (&) and aliases (*) are not taken; write it out"),
        (
            "name: !!python/object:os.system w",
            "w.yaml:1:7: the tag tag:yaml.org,2002:python/object:os.system is not taken; remove it",
        ),
        ("name: !x w", "w.yaml:1:7: the tag !x is not taken; remove it"),
        ("a: 1\n<<: {b: 2}", "w.yaml:2:1: this cannot be a key; use a text"),
        ("? [a]\n: 1", "w.yaml:1:3: this cannot be a key; use a text"),
        ("name: w\n---\nname: v", "w.yaml:2:1: there are several documents; mend the YAML"),
        (
            "a: [1",
            "w.yaml:1:6: is no YAML: while parsing a flow sequence",
        ),
        (
            "a:\n\t- b",
            "w.yaml:2:1: is no YAML: while scanning for the next token",
        ),
        ("a: 1e999", None),
        (
            "a: \x07",
            "w.yaml: is no YAML: unacceptable character #x0007: special characters are not allowed; use printable text",
        ),
        ("[" * 200, "w.yaml:1:101: is nested too deeply; use at most 100 levels"),
        ("a: 9" + "9" * 400 + ".0", None),
    ],
)
def test_what_is_no_document_is_refused(text: str, line: str | None) -> None:
    lines = refused(text)
    assert len(lines) == 1 or line is None
    assert lines[0].startswith(line or "w.yaml:1:4")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "w.json:1:1: ends too early; mend the JSON"),
        ('{"a": ', "w.json:1:7: ends too early; mend the JSON"),
        ('{"a" 1}', 'w.json:1:6: a colon belongs here; write "key": value'),
        ("{a: 1}", 'w.json:1:2: a key in double quotes belongs here; write "key": value'),
        ('{"a": 1,}', 'w.json:1:9: a key in double quotes belongs here; write "key": value'),
        ('{"a": 1} {}', "w.json:1:10: something follows the document; remove it"),
        ('{"a": [1 2]}', "w.json:1:10: a comma or ] belongs here; check the brackets"),
        ('{"a": 1 2}', "w.json:1:9: a comma or } belongs here; check the brackets"),
        ('{"a": NaN}', "w.json:1:7: a value belongs here; mend the JSON"),
        ('{"a": 1e999}', "w.json:1:7: is too large a number; write a smaller one, or a text"),
        ('{"a": "\n"}', "w.json:1:8: is no text of JSON; end it with a quote, and escape \\ and control characters"),
        ("[" * 200, "w.json:1:102: is nested too deeply; use at most 100 levels"),
    ],
)
def test_what_is_no_json_is_refused(text: str, line: str) -> None:
    assert refused(text, "w.json") == [line]


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(b"\xff" * 1_000_001)
    with pytest.raises(BadWorkflow, match="is larger than 1000000 bytes"):
        load_workflow(path)
    with pytest.raises(BadWorkflow, match="is larger than 1000000 bytes"):
        parse_workflow("é" * 600_000)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    for name, problem in (("none.yaml", "No such file"), ("w.txt", "neither YAML nor JSON"), ("w\0.yaml", "null byte")):
        with pytest.raises(BadInput, match=problem):
            load_workflow(tmp_path / name)
    (tmp_path / "w.yaml").write_bytes(b"name: w\nrisk: \xff")
    with pytest.raises(BadWorkflow, match="is not UTF-8; save it as UTF-8"):
        load_workflow(tmp_path / "w.yaml")


def test_without_pyyaml_the_extra_is_named_and_json_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "holdfast.plane.workflows.yaml_source")
    with pytest.raises(BadInput, match=r"holdfast\[plane\]"):
        parse_workflow(REFUND)
    assert parse_workflow('{"name": "w", "steps": {"a": {"topic": "t"}}}').name == "w"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("0o17", "0o17"),
        ("017", "017"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("True", True),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("-5", -5),
        ("2.50", 2.5),
        ("1e3", 1000.0),
        ("|\n  a\n  b\n", "a\nb\n"),
    ],
)
def test_yaml_means_what_people_mean(written: str, value: Any) -> None:
    found = read_yaml(f"a: {written}").value["a"]
    assert (found, type(found)) == (value, type(value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_json_is_read_as_everybody_reads_it(value: Any, indent: int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert read_json(text).value == json.loads(text)


@given(
    st.text(max_size=30)
    | st.lists(st.sampled_from(list("{}[]:,-&*!|>'\"%@`#? \n\tab1.\\~\x00")), max_size=30).map("".join)
)
def test_any_text_is_a_document_or_unreadable(text: str) -> None:
    for read in (read_yaml, read_json):
        try:
            found = read(text)
        except UnreadableSource as error:
            assert error.problem  # noqa: PT017 - one of the two ways that are both right
        else:
            assert () in found.spots


SAMPLES = [block for block in blocks(PAGE) if block.language in {"yaml", "json"}]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda block: str(block.where))
def test_the_workflows_of_the_page_are_sound(sample: Any) -> None:
    assert parse_workflow(sample.text, sample.where).steps
