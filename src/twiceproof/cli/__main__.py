"""``python -m twiceproof.cli`` is ``twiceproof``."""

from __future__ import annotations

from twiceproof.cli import main

if __name__ == "__main__":
    main()
