"""Workflows from YAML or JSON files, with errors that name the step, the line and the column.

Promises: the result is valid (`plane.workflows.core.validation`). All problems of a file are reported together, each as
`file:line:column: step 'x': problem; fix`. A file of more than a megabyte is refused. YAML needs PyYAML, which
`holdfast[plane]` installs; JSON needs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from holdfast.errors import BadInput
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.problems import BadWorkflow, DefinitionProblem, TextPosition
from holdfast.plane.workflows.core.validation import judge_document
from holdfast.plane.workflows.source import BYTES_MAX, SourceDocument, UnreadableSource, read_json

Form: TypeAlias = Literal["yaml", "json"]

_SUFFIXES: dict[str, Form] = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def load_workflow(path: str | Path) -> Workflow:
    """The workflow in a file. `BadWorkflow` with all its problems, or `BadInput` if the file cannot be read."""
    where = Path(path)
    form = _SUFFIXES.get(where.suffix.lower())
    if form is None:
        raise BadInput(str(path), "is neither YAML nor JSON by its name", "end it in .yaml, .yml or .json")
    try:
        with where.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: the name contains a zero character
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(str(path), f"cannot be read ({reason})", "name a file that is there") from None
    if len(content) > BYTES_MAX:
        raise BadWorkflow(str(path), [_too_large()])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = (content.count(b"\n", 0, error.start) + 1, error.start - content.rfind(b"\n", 0, error.start))
        raise BadWorkflow(str(path), [DefinitionProblem((), "is not UTF-8", "save it as UTF-8")], [at]) from None
    return parse_workflow(text, str(path), form=form)


def parse_workflow(text: str, name: str = "<text>", *, form: Form | None = None) -> Workflow:
    """The workflow in a text, or `BadWorkflow` with all its problems.

    Without a `form`, a text that starts like JSON is JSON, and any other is YAML.
    """
    if len(text) > BYTES_MAX or len(text.encode("utf-8", "surrogatepass")) > BYTES_MAX:
        raise BadWorkflow(name, [_too_large()])
    try:
        placed = _placed(text, form)
    except UnreadableSource as error:
        raise BadWorkflow(name, [DefinitionProblem((), error.problem, error.fix)], [error.place]) from None
    workflow, problems = judge_document(placed.value)
    found: list[tuple[DefinitionProblem, TextPosition | None]] = [
        (DefinitionProblem(path, "stands there twice", "keep one"), place) for path, place in placed.repeated
    ]
    found += [(problem, placed.place(problem)) for problem in problems]
    if found:
        found.sort(key=lambda each: each[1] or (0, 0))
        raise BadWorkflow(name, [problem for problem, _ in found], [place for _, place in found])
    return workflow


def _placed(text: str, form: Form | None) -> SourceDocument:
    begins = text.lstrip()[:1] == "{" and text.lstrip()[1:].lstrip()[:1] in {'"', "}"}
    if form == "json" or (form is None and begins):
        return read_json(text)
    try:
        from holdfast.plane.workflows.yaml_source import read_yaml
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        fix = 'pip install "holdfast[plane]", or write the workflow as JSON'
        raise BadInput("workflow", "YAML needs PyYAML, which is not installed", fix) from None
    return read_yaml(text)


def _too_large() -> DefinitionProblem:
    return DefinitionProblem((), f"is larger than {BYTES_MAX} bytes", "split it into several workflows")
