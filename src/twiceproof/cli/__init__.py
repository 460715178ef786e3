"""The command line: ``twiceproof demo | keys | store | explain``."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDS = ("click", "rich")


def main() -> None:
    """Run the command line and exit: 0 done, 1 found something or refused, 2 can't, 130 interrupted."""
    try:
        missing = [name for name in NEEDS if find_spec(name) is None]
        if missing:
            sys.stderr.write(
                f"The command line needs {' and '.join(missing)}, which this Python lacks; "
                "install it with: pip install 'twiceproof[cli]'\n"
            )
            sys.exit(2)
        from twiceproof.cli._root import run

        code = run()
    except KeyboardInterrupt:  # before there is anything to interrupt
        code = 130
    sys.exit(code)
