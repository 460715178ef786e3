"""Serve the demo's API as a Flask application under gunicorn, with several worker processes.

``python -m twiceproof.cli._demo.serve_flask --port 8642 --store sqlite:///keys.db --effects effects.db``
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from twiceproof.cli._demo.serve import announced, read_options

SERVICE: Final = "twiceproof.cli._demo.service_flask:make_app()"
SETTINGS: Final = "python:twiceproof.cli._demo.gunicorn_settings"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Become gunicorn on a socket of ours."""
    options = read_options(arguments, SERVICE)
    listener = announced(options)
    if listener is None:
        sys.exit(2)
    listener.set_inheritable(True)
    if options.lifeline:
        os.environ["TWICEPROOF_DEMO_LIFELINE"] = "yes"
    command = [sys.executable, "-m", "gunicorn", "--config", SETTINGS, "--workers", str(options.workers)]
    command += ["--bind", f"fd://{listener.fileno()}", options.app]
    os.execv(sys.executable, command)  # noqa: S606  # our own interpreter, our own arguments


if __name__ == "__main__":
    main()
