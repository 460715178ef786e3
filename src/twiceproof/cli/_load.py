"""Import an application by its name, and keep what it prints and warns of out of our own output."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

from twiceproof.cli._output import Cannot
from twiceproof.errors import ConfigurationError, TwiceproofWarning


@contextlib.contextmanager
def collected_warnings() -> Generator[list[str]]:
    """Collect the warnings of this package in the list; what is printed meanwhile goes to stderr."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("always", TwiceproofWarning)
        yield found
    found += dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, TwiceproofWarning))


def load_app(target: str, *, factory: bool) -> Any:
    """Return what ``module:attribute`` names; with ``factory``, what calling it returns."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute or module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("./").replace("/", ".") or "app"
        raise Cannot(f"{target!r} names no application; write module:attribute, such as {hint}:{attribute or 'app'}.")
    found: Any = _import(module_name)
    for name in attribute.split("."):
        found = _attribute(found, name, target)
    if factory:
        if not callable(found):
            raise Cannot(f"{target} can't be called; leave out --factory.")
        found = _tried(found, f"{target}()")
        if inspect.iscoroutine(found):
            found.close()
            raise Cannot(f"{target}() is asynchronous; name a factory that returns the application itself.")
    elif inspect.isfunction(found) and not inspect.signature(found).parameters:
        raise Cannot(f"{target} is a function without arguments, no application; is it a factory? Then give --factory.")
    return found


def _import(name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return _tried(lambda: import_module(name), name)


def _tried(call: Callable[[], Any], what: str) -> Any:
    """Call it; whatever it raises becomes a sentence that says where."""
    try:
        return call()
    except ConfigurationError as error:
        raise Cannot(f"{what} would not start: {error}{_place(error)}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is the application's code
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{what}.".startswith(f"{error.name}.")
        ):
            raise Cannot(f"There is no module {error.name!r} here ({Path.cwd()}) nor in this Python.") from None
        raise Cannot(f"{what} can't be loaded: {type(error).__name__}: {error}{_place(error)}") from None


def _place(error: BaseException) -> str:
    """Return the innermost line outside this package and Python's own machinery, where there is one."""
    here = str(Path(__file__).parent.parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((here, "<")) and "importlib" not in frame.filename:
            return f" ({frame.filename}, line {frame.lineno})"
    return ""


def _attribute(owner: object, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(owner), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise Cannot(f"{target}: there is no {name!r} in it{hint}") from None
