"""Take a SQLite store away: hold the file's write lock, as a process of its own, for as long as a scene says.

It reads words from its standard input: ``take`` waits for the lock, ``give`` lets go of it; the end of input ends it.
"""

from __future__ import annotations

import sqlite3
import sys


def main(file: str) -> None:
    """Obey until standard input ends; each word is answered with a line once it is done."""
    connection = sqlite3.connect(file, timeout=20, isolation_level=None)
    for word in sys.stdin:
        connection.execute("BEGIN IMMEDIATE" if word.strip() == "take" else "ROLLBACK")
        print("done", flush=True)  # noqa: T201  # to the scene
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
