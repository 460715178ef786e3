"""Looks at the project's own files: what they point at, the lock, the changelog's fragments."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIMB = re.compile(r"(?<![\w/.])(?:\.\./)+[\w.-]+")
LOCK = Path("requirements/dev.lock")


def project_files() -> list[Path]:
    """Everything that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def outside(path: Path, text: str) -> Iterator[str]:
    """A path that climbs must end at a file of the project: a clone stands alone."""
    for number, line in enumerate(text.splitlines(), 1):
        for climb in CLIMB.findall(line):
            ends = ((path.parent / climb).resolve(), (ROOT / climb).resolve())
            if not any(end.is_relative_to(ROOT) and end.exists() for end in ends):
                yield f"{path.relative_to(ROOT)}:{number}: {climb} leads out of the project"


def lock(text: str) -> Iterator[str]:
    """The lock names versions and hashes; where they come from is each machine's own setting."""
    for number, line in enumerate(text.splitlines(), 1):
        if "://" in line or "--index" in line or "--find-links" in line:
            yield f"{LOCK}:{number}: an address in the lock"


def fragments() -> Iterator[str]:
    """A fragment is NAME.KIND.md, one or more lines of text."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in settings["type"])
    for path in sorted((ROOT / settings["directory"]).iterdir()):
        if path.name in settings["ignore"]:
            continue
        if not re.fullmatch(rf"\+[a-z0-9-]+\.({kinds})\.md", path.name):
            yield f"{path.relative_to(ROOT)}: fragments are named +what-changed.KIND.md, KIND one of {kinds}"
        elif not path.read_text().strip():
            yield f"{path.relative_to(ROOT)}: says nothing"


def findings() -> Iterator[str]:
    """All of the above."""
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield from outside(path, text)
    yield from lock((ROOT / LOCK).read_text())
    yield from fragments()


if __name__ == "__main__":
    found = list(findings())
    print(*found, sep="\n" if found else "")
    sys.exit(bool(found))
