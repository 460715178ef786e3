"""The runners of `core._engine`: one blocking, one asynchronous, one body of rules."""

from twiceproof.engine._async import AsyncEngine
from twiceproof.engine._attempt import Attempt, Run
from twiceproof.engine._blocking import Engine
from twiceproof.engine._options import Event

__all__ = ["AsyncEngine", "Attempt", "Engine", "Event", "Run"]
