"""From `module:name` to an `App`, with errors that say what to do.

Imports the module, which runs it: whatever it prints or opens happens here. Promises: an error of the module itself is
told apart from a module that is not there, and keeps its cause.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.app import App
from holdfast.plane.outcome import error_text

_FORM: Final = "write module:name, such as billing.jobs:app"


def load_app(target: str) -> App:
    """The app that `module:name` means. Modules in the working directory are found too."""
    module_name, mark, name = target.partition(":")
    if not mark or not all(part.isidentifier() for text in (module_name, name) for part in text.split(".")):
        raise BadInput("app", f"{target!r} does not name an app", _FORM)
    try:
        found: object = _imported(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _broken(module_name, error) from error
        fix = "check its name, run from the directory that has it, or set PYTHONPATH"
        raise BadInput("app", f"there is no module {error.name!r}", fix) from error
    except (Exception, SystemExit) as error:  # a script that ends itself is no module with an app
        raise _broken(module_name, error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadInput("app", f"{module_name} has no {name!r}", _others(module_name))
        found = getattr(found, part)
    if not isinstance(found, App):
        raise BadInput("app", f"{target} is a {type(found).__name__} and not an App", _others(module_name))
    return found


def _imported(name: str) -> ModuleType:
    """Import a module, from the working directory if it is there.

    The directory goes to the end of the search path: a file in it, such as click.py, must not take the place of a
    library that Holdfast imports later. The app's own module is taken from it all the same.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    top = name.partition(".")[0]
    spec = None if top in sys.modules else PathFinder.find_spec(top, [here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules[top] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(top, None)
            raise
    return importlib.import_module(name)


def _broken(module: str, error: Exception | SystemExit) -> BadInput:
    return BadInput("app", f"{module} cannot be imported ({error_text(error)})", f"see that `python -m {module}` works")


def _others(module: str) -> str:
    names = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, App)]
    return f"use {' or '.join(f'{module}:{name}' for name in names)}" if names else 'make one: app = App("name")'
