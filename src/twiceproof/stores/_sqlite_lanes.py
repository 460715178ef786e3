"""What a process has open on one file: read connections, and the writer; made anew in a forked child."""

from __future__ import annotations

import sqlite3
from typing import Final, TypeVar

from twiceproof.stores._per_process import PerProcess
from twiceproof.stores._sqlite_file import File, busy
from twiceproof.stores._sqlite_flights import Flights
from twiceproof.stores._sqlite_verbs import UNDECIDED, Undecided, Verb
from twiceproof.stores._sqlite_writer import Writer

T = TypeVar("T")

_MOST_READERS: Final = 8  # connections kept for the next look; more threads than that open one for the moment


class Readers:
    """Read connections, each used by one thread at a time."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._free: list[sqlite3.Connection] = []
        self._era = 0  # grows with every `clear`: what was taken before is not kept after

    def ready(self) -> bool:
        """Whether there is something to look at: a file that is missing, new or broken is the writer's to see to."""
        if not self._free:
            era = self._era
            try:
                self._keep(self._file.reader(), era)
            except sqlite3.Error:
                return False
        return True

    def look(self, verb: Verb[T]) -> T | Undecided:
        """Return what ``verb`` reads; raises what SQLite raises."""
        assert verb.read is not None, "only called for a verb that looks"
        era = self._era
        try:
            connection = self._free.pop() if self._free else self._file.reader()
        except IndexError:  # another thread was faster
            connection = self._file.reader()
        try:
            answer = verb.read(connection)
        except BaseException:
            connection.close()
            raise
        self._keep(connection, era)
        return answer

    def _keep(self, connection: sqlite3.Connection, era: int) -> None:
        if era != self._era or len(self._free) >= _MOST_READERS:
            connection.close()
        else:
            self._free.append(connection)

    def clear(self) -> None:
        """Close every connection: one that stays open holds a mark in the log."""
        self._era += 1
        while self._free:
            self._free.pop().close()


class Lanes:
    """One process's ways into the file."""

    def __init__(self, file: File, flights: Flights) -> None:
        self._file = file
        self._flights = flights
        self._readers = Readers(file)
        self.writer: Final = Writer(file, flights, self._readers.clear)

    def at_once(self, verb: Verb[T]) -> T | Undecided:
        """Answer ``verb`` on the calling thread without waiting for anybody, or leave it to the writer's thread."""
        if verb.ends is not None:
            self._flights.end(verb.ends)  # its own handler is no company
        answer: T | Undecided = UNDECIDED
        if verb.writes:
            answer = self.writer.inline(verb)
        if answer is not UNDECIDED or verb.read is None or not (self.writer.prepared or self._readers.ready()):
            return answer
        try:
            return self._readers.look(verb)
        except sqlite3.Error as error:
            if busy(error):
                return UNDECIDED
            self.writer.doubt()
            self._readers.clear()
            raise self._file.told(error, commits=False) from error

    def close(self) -> None:
        """Close what is open, within the time-out."""
        self.writer.close()
        self._readers.clear()


class Database:
    """One file, in whatever process this is. Its lanes are made by the first verb and after each fork or close."""

    def __init__(self, file: File, flights: Flights | None = None) -> None:
        self.file: Final = file
        self.flights: Final = Flights() if flights is None else flights
        self._lanes: Final = PerProcess(lambda: Lanes(self.file, self.flights))

    @property
    def lanes(self) -> Lanes:
        """What this process has open."""
        return self._lanes.mine

    def close(self) -> None:
        """Close what this process has open; a later verb opens it again."""
        self._lanes.close()
