"""The client for programs without an event loop: httpx.Client behind the calls.

A thin driver: what can be asked is in verbs.py, what a verb sends and returns in the builder that it names.
"""

import time
from collections.abc import Callable, Generator
from typing import Self, Unpack

import httpx

from shelld_py.client import run_calls
from shelld_py.client.calls import Answer, Call, T, segment
from shelld_py.client.connection import SOCKET_OPTIONS, Attempts, Connection, Retries, answer_of, result_of
from shelld_py.client.events import EVENTS_TYPE, Event, Following
from shelld_py.client.shell_calls import FormatName, StartupOptions, StreamName
from shelld_py.client.verbs import (
    BlockingPart,
    DaemonVerbs,
    FilesVerbs,
    RunsVerbs,
    Sender,
    SessionsVerbs,
    SessionVerbs,
    ToolsVerbs,
)
from shelld_py.models import OutputPart, Stream


class _Sender:
    """Sends calls, again where that is allowed."""

    def __init__(self, connection: Connection, transport: httpx.BaseTransport | None) -> None:
        self.connection = connection
        own = httpx.HTTPTransport(verify=connection.encrypted, socket_options=SOCKET_OPTIONS)
        self.http = httpx.Client(transport=transport or own)

    def send(self, build: Callable[[], Call[T]]) -> T:
        """Return the result of the call that `build` makes. Raises `ShelldError`."""
        call = build()
        attempts = Attempts(self.connection)
        while True:
            try:
                answer = answer_of(self.http.request(**self.connection.arguments(call)))
            except httpx.RequestError as error:
                pause: float | None = attempts.after_failure(call, error)
            else:
                pause = attempts.after_answer(call, answer)
                if pause is None:
                    return result_of(call, answer)
            time.sleep(pause or 0)

    def events(self, following: Following) -> Generator[Event, None, None]:
        """Yield events until the last, over as many connections as it takes."""
        attempts = Attempts(self.connection)
        while not following.done:
            call = following.call()
            try:
                with self.http.stream(**self.connection.arguments(call, EVENTS_TYPE)) as response:
                    if response.is_success:
                        following.opened()
                        for chunk in response.iter_raw():
                            for event in following.feed(chunk):
                                attempts.failed = 0
                                yield event
                        if following.done:
                            return
                        raise httpx.RemoteProtocolError("the events ended without a result")
                    response.read()
                    answer: Answer = answer_of(response)
            except httpx.RequestError as error:
                pause: float | None = attempts.after_failure(call, error)
            else:
                pause = attempts.after_answer(call, answer)
                if pause is None:
                    result_of(call, answer)
            time.sleep(pause or 0)


class Session(SessionVerbs, BlockingPart):
    """A shell of its own. As a context manager it is closed at the end."""

    def __init__(self, sender: Sender, session_id: str) -> None:
        super().__init__(sender, f"/sessions/{segment(session_id)}")
        self.session_id = session_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sessions(SessionsVerbs, BlockingPart):
    """The shells beside the main one."""

    def open(self, **options: Unpack[StartupOptions]) -> Session:
        """Open a shell: `with client.sessions.open() as session: session.run(...)`. Raises `TooManySessions`."""
        return self.use(self._open(**options))

    def use(self, session_id: str) -> Session:
        """Return the session with this id, without asking the daemon whether it is there."""
        return Session(self._sender, session_id)


class Runs(RunsVerbs, BlockingPart):
    """All runs that the daemon keeps."""

    def pieces(
        self,
        run_id: str,
        *,
        cursor: int = 0,
        stream: StreamName = Stream.STDOUT,
        limit: int | None = None,
        format: FormatName | None = None,  # noqa: A002
    ) -> Generator[OutputPart, None, None]:
        """Yield the output of one stream from `cursor` on, as it comes, until the end of the run."""
        eof = False
        while not eof:
            part = self.output(
                run_id, cursor=cursor, stream=stream, limit=limit, format=format, wait=run_calls.PATIENCE
            )
            if part.output or part.dropped:
                yield part
            cursor, eof = part.next_cursor, part.eof


class Files(FilesVerbs, BlockingPart):
    """Files below the daemon's allowed directories."""


class Tools(ToolsVerbs, BlockingPart):
    """The daemon's tools for a model."""


class Client(DaemonVerbs, BlockingPart):
    """A daemon, and its main shell. As a context manager its connections are closed at the end."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Without `url` and `key`, `SHELLD_URL` (or http://127.0.0.1:8080) and `SHELLD_KEY` are taken.

        `timeout` is how many seconds an answer may take beyond what a call waits for on purpose; `retries` is how
        often to send again what may be sent again. `transport` replaces the way to the daemon; without it, proxies
        of the environment are not used. Raises `ValueError` for what cannot be a URL or a key.
        """
        sender = _Sender(Connection(url, key, timeout, retries or Retries()), transport)
        super().__init__(sender, "")
        self.url = sender.connection.url
        self._http = sender.http
        self.sessions = Sessions(sender, "/sessions")
        self.runs = Runs(sender, "/runs")
        self.files = Files(sender, "/files")
        self.tools = Tools(sender, "/tools")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; runs and sessions stay."""
        self._http.close()
