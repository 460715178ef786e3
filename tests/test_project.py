"""The promises of the package as a whole."""

import ast
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "twiceproof"


def imported(path: Path) -> set[str]:
    """The first parts of all modules that a file imports, wherever in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_nothing_is_installed_beside_it_unless_asked_for():
    required = metadata.requires("twiceproof") or []
    assert [line for line in required if "extra ==" not in line] == []


def test_the_core_imports_the_standard_library_and_itself_only():
    known = sys.stdlib_module_names | {"twiceproof"}
    strangers = {
        path.name: imported(path) - known for path in (SOURCE / "core").rglob("*.py") if not imported(path) <= known
    }
    assert strangers == {}


def test_its_types_are_visible_to_its_users():
    assert (SOURCE / "py.typed").is_file()


def test_each_command_of_the_project_can_be_run():
    commands = [path for path in (ROOT / "scripts").iterdir() if not path.name.startswith("_")]
    assert commands
    assert [path.name for path in commands if not path.stat().st_mode & 0o111] == []
