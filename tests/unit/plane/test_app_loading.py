"""From `module:name` to an app: found in the working directory too, and every error says what to do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.plane.app import load_app

APP = """
from holdfast.plane import App

app = App("found")
other = App("other")
number = 3


class Box:
    inner = app
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    return write


def test_an_app_in_the_working_directory_is_found(module: Callable[[str, str], None]) -> None:
    module("my_jobs.py", APP)
    module("my_package/deep.py", APP)
    assert load_app("my_jobs:app").name == "found"
    assert load_app("my_jobs:Box.inner").name == "found"
    assert load_app("my_package.deep:other").name == "other"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("", "does not name an app"),
        ("my_jobs", "does not name an app"),
        ("my_jobs:", "does not name an app"),
        (":app", "does not name an app"),
        ("my_jobs.py:app", "there is no module 'my_jobs.py'"),
        ("../my_jobs:app", "does not name an app"),
        ("my_jobs:app()", "does not name an app"),
        ("missing:app", "there is no module 'missing'"),
        ("missing.deeper:app", "there is no module 'missing'"),
        ("my_jobs:nothing", "use my_jobs:app or my_jobs:other"),
        ("my_jobs:number", "is a int and not an App"),
        ("empty:app", "make one"),
        ("broken:app", "broken cannot be imported (ZeroDivisionError: division by zero)"),
        ("needy:app", "needy cannot be imported (ModuleNotFoundError: No module named 'not_installed')"),
        ("typo:app", "typo cannot be imported (SyntaxError:"),
        ("script:app", "script cannot be imported (SystemExit: 5)"),
    ],
)
def test_what_cannot_be_loaded_says_what_to_do(module: Callable[[str, str], None], target: str, text: str) -> None:
    module("my_jobs.py", APP)
    module("empty.py", "")
    module("broken.py", "1 / 0")
    module("needy.py", "import not_installed")
    module("typo.py", "def f(:")
    module("script.py", "import sys\nsys.exit(5)")
    with pytest.raises(BadInput) as refused:
        load_app(target)
    assert refused.value.field == "app"
    assert text in str(refused.value)


def test_a_file_of_the_working_directory_does_not_take_the_place_of_a_library(
    module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("jobs_here.py", APP)
    module("uvicorn.py", "raise RuntimeError('not the library')")
    for name in [each for each in sys.modules if each.partition(".")[0] == "uvicorn"]:
        monkeypatch.delitem(sys.modules, name)
    assert load_app("jobs_here:app").name == "found"
    assert importlib.import_module("uvicorn").__version__


def test_the_app_of_the_working_directory_comes_before_a_library_of_the_same_name(
    module: Callable[[str, str], None],
) -> None:
    module("this.py", APP)  # the standard library has one too
    assert load_app("this:app").name == "found"
