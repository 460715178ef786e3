"""One request and its answer on their way through a WSGI door: R43, R45, R47, R50, R51."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

from twiceproof.core._answer import AnswerCopy, announced_length
from twiceproof.core._messages import Response
from twiceproof.core._outcome import Answered, Cancelled, CutShort, NothingHappened, Outcome, Raised
from twiceproof.core._problems import UNPROTECTED
from twiceproof.errors import NotExecuted
from twiceproof.server._wsgi_environ import Environ, native, octets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication

    from twiceproof.core._messages import Headers
    from twiceproof.engine import Engine, Run

Fields = list[tuple[str, str]]


class Exchange:
    """The state of one covered request, and the iterable of its answer. ``run`` is set once it is claimed."""

    __slots__ = (
        "_begun",
        "_closed",
        "_copy",
        "_engine",
        "_environ",
        "_held",
        "_iterator",
        "_late",
        "_length",
        "_response",
        "_result",
        "_server_start",
        "_server_write",
        "nothing",
        "run",
        "unprotected",
    )

    def __init__(self, engine: Engine, environ: Environ, start_response: StartResponse) -> None:
        self._engine = engine
        self._environ = environ
        self._server_start = start_response
        self._server_write: Callable[[bytes], object] | None = None
        self._response: Response | None = None
        self._length: int | None = None
        self._copy = AnswerCopy(0)
        self._begun = False
        self._held: list[bytes] = []
        self._result: Any = None
        self._iterator: Iterator[bytes] | None = None
        self._late: BaseException | None = None
        self._closed = False
        self.run: Run | None = None
        self.nothing = False
        self.unprotected = False

    @property
    def _open(self) -> bool:
        """Whether the claim is ours and not settled yet."""
        return self.run is not None and not self.run.finished

    # ------------------------------------------------------------------ from the application

    def run_app(self, app: WSGIApplication) -> Iterable[bytes]:
        """Call the application and return what the server iterates; settles with whatever it comes to."""
        try:
            return self._taken(app(self._environ, self.start_response))
        except BaseException as error:
            self._failed(error)
            with contextlib.suppress(Exception):  # the application's own error is the one to tell
                for part in self._released():
                    self._pass(part)
            raise

    def start_response(self, status: str, headers: Fields, exc_info: Any = None, /) -> Callable[[bytes], object]:
        """Take the head of the answer; the server sends it with the first byte."""
        if self.unprotected:
            headers = [*headers, *native([UNPROTECTED])]  # R48
        try:
            if exc_info is not None and self._begun:
                raise exc_info[1].with_traceback(exc_info[2])  # PEP 3333: it is too late for another head
            given = () if exc_info is None else (exc_info,)
            self._server_write = self._server_start(status, headers, *given)
        finally:
            exc_info = None  # it leads back here
        if self._open:
            fields: Headers = [(octets(name), octets(value)) for name, value in headers]
            self._response = Response(int(status[:3]), fields)
            self._length = announced_length(self._response)
        return self.write

    def write(self, part: bytes, /) -> None:
        """Send a part at once: the old way of PEP 3333."""
        for out in self._through(part):
            self._pass(out)

    def _pass(self, part: bytes) -> None:
        assert self._server_write is not None  # the application got `write` from `start_response`
        self._server_write(part)

    def _taken(self, result: Iterable[bytes]) -> Iterable[bytes]:
        """Return what the server iterates in place of what the application returned."""
        if self.run is None:
            return result
        if self._open and self._response is not None:
            if type(result) in (list, tuple):
                for part in result:
                    self._copy.add(part)
                self._settle(self._answered())  # R45: it is whole, and nothing of it is sent yet
                return [*self._released(), *result] if self._held else result
            if self._is_file(result):
                self._copy.drop()  # R26: the server sends it by its own means, as without us
                self._settle(self._answered())
                return result
        self._result = result
        self._iterator = iter(result)
        return self

    def _is_file(self, result: object) -> bool:
        wrapper: object = self._environ.get("wsgi.file_wrapper")
        return isinstance(wrapper, type) and isinstance(result, wrapper)

    # ------------------------------------------------------------------ towards the server

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """Return the next part as it comes; the one that completes the answer only once it is recorded (R43, R45)."""
        while self._iterator is not None:
            try:
                part = next(self._iterator)
            except StopIteration:
                self._exhausted()
            except BaseException as error:
                self._iterator = None
                self._failed(error)
                if not self._held:
                    raise
                self._late = error
            else:
                if self._through(part):
                    return part
        if self._held:
            return b"".join(self._released())
        raise StopIteration

    def close(self) -> None:
        """End the answer, on whatever path (B45); one that was not whole by now was cut short (R50)."""
        try:
            self._close_result()
        except BaseException as error:
            self._failed(error)
            raise
        if self._open:
            self._settle(CutShort())
        if self._late is not None:
            late, self._late = self._late, None
            raise late

    def _through(self, part: bytes) -> tuple[bytes, ...]:
        """Copy a part, and return it unless it has to wait.

        The one that completes the announced length is recorded first; in a 5xx it waits for how the application ends
        (CONTRACT 5). Without an announced length the end of the answer tells its client that it is whole.
        """
        if not part or not self._open or self._response is None:
            return (part,)
        self._begun = True
        self._copy.add(part)
        if self._length is not None and self._copy.size >= self._length:
            if self._response.status >= 500:
                self._held.append(part)
                return ()
            self._settle(self._answered())
        return (part,)

    def _exhausted(self) -> None:
        """Settle at the end of the iterable; a 5xx after its application has closed it (CONTRACT 5)."""
        self._iterator = None
        if not self._open:
            return
        if self._response is None:
            self._settle(Raised())
            return
        if self._response.status >= 500:
            try:
                self._close_result()
            except BaseException as error:  # noqa: BLE001  # raised when the server closes us
                self._late = error
                self._failed(error, whole=True)
                return
        self._settle(self._answered())

    def _close_result(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._iterator = None
        close = getattr(self._result, "close", None)
        if close is not None:
            close()

    def _released(self) -> list[bytes]:
        held, self._held = self._held, []
        return held

    # ------------------------------------------------------------------ the end

    def _failed(self, error: BaseException, *, whole: bool = False) -> None:
        """Settle with an error of the application, unless the answer was recorded before it (R51).

        ``whole``: nothing of the answer is missing (CONTRACT 5).
        """
        if self.run is None:
            return
        if not self._open:
            if isinstance(error, Exception):
                self._engine.settings.emit("completed", "late-error", self.run.call.new)
            return
        outcome: Outcome = Raised()
        if isinstance(error, NotExecuted):
            outcome = NothingHappened()
        elif not isinstance(error, Exception):
            outcome = Cancelled()  # R40: the server ends this worker, or its patience did
        elif self._begun and not (self._held or whole):
            outcome = CutShort()
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        assert self.run is not None  # only called on a claimed request
        self._engine.finish(self.run, NothingHappened() if self.nothing else outcome)
        self._copy.drop()

    def _answered(self) -> Answered:
        assert self._response is not None  # checked by the callers
        assert self.run is not None  # the same
        response = self._copy.response(self._response.status, self._response.headers)
        return Answered(response, self.run.attempt.released)

    def claimed(self, run: Run) -> None:
        """Take over the run: from now on the answer is copied and recorded."""
        self.run = run
        self._copy = AnswerCopy(run.call.policy.max_response_bytes)
