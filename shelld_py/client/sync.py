"""The client for programs without an event loop: httpx.Client behind the calls.

A thin driver: what a method sends and returns is in the builder that it names.
"""

import time
from collections.abc import Callable, Generator
from functools import wraps
from typing import Concatenate, ParamSpec, Self, Unpack

import httpx

from shelld_py.client import file_calls, run_calls, shell_calls
from shelld_py.client.calls import Answer, Call, Duration, T, segment
from shelld_py.client.connection import SOCKET_OPTIONS, Attempts, Connection, Retries, answer_of, result_of
from shelld_py.client.events import EVENTS_TYPE, Event, Following, follow_known, follow_new
from shelld_py.client.shell_calls import FormatName, RunOptions, StartupOptions, StreamName
from shelld_py.models import OutputPart, Stream

P = ParamSpec("P")


class _Sender:
    """Sends calls, again where that is allowed."""

    def __init__(self, connection: Connection, transport: httpx.BaseTransport | None) -> None:
        self.connection = connection
        own = httpx.HTTPTransport(verify=connection.encrypted, socket_options=SOCKET_OPTIONS)
        self.http = httpx.Client(transport=transport or own)

    def send(self, call: Call[T]) -> T:
        """Return the result of `call`. Raises `ShelldError`."""
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


class _Part:
    """A part of the client: the paths below `base`."""

    def __init__(self, sender: _Sender, base: str) -> None:
        self._sender = sender
        self._base = base


def _verb(build: Callable[Concatenate[str, P], Call[T]]) -> Callable[Concatenate[_Part, P], T]:
    """Return the method that sends the call which `build` makes."""

    @wraps(build)
    def method(self: _Part, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._sender.send(build(self._base, *arguments, **options))

    return method


class _Shell(_Part):
    """The verbs of a shell."""

    run = _verb(shell_calls.run)
    kill = _verb(shell_calls.kill)
    recycle = _verb(shell_calls.recycle)
    status = _verb(shell_calls.status)
    output = _verb(shell_calls.output)
    stdin = _verb(shell_calls.stdin)
    resize = _verb(shell_calls.resize)

    def stream(self, command: str, **options: Unpack[RunOptions]) -> Generator[Event, None, None]:
        """Run a command; yield its output as it is written, and last a `Result`.

        A broken connection is made again where the last event ended. Closing the iterator leaves the run running.
        """
        return self._sender.events(follow_new(f"{self._base}/run", command, options))


class Session(_Shell):
    """A shell of its own. As a context manager it is closed at the end."""

    def __init__(self, sender: _Sender, session_id: str) -> None:
        super().__init__(sender, f"/sessions/{segment(session_id)}")
        self.session_id = session_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the shell and all that it has started. Raises `SessionNotFound`."""
        self._sender.send(shell_calls.close_session("/sessions", self.session_id))


class Sessions(_Part):
    """The shells beside the main one."""

    list = _verb(shell_calls.list_sessions)
    get = _verb(shell_calls.get_session)
    close = _verb(shell_calls.close_session)

    def open(self, **options: Unpack[StartupOptions]) -> Session:
        """Open a shell: `with client.sessions.open() as session: session.run(...)`. Raises `TooManySessions`."""
        return self.use(self._sender.send(shell_calls.open_session(self._base, **options)))

    def use(self, session_id: str) -> Session:
        """Return the session with this id, without asking the daemon whether it is there."""
        return Session(self._sender, session_id)


class Runs(_Part):
    """All runs that the daemon keeps."""

    list = _verb(run_calls.list_runs)
    get = _verb(run_calls.get_run)
    output = _verb(run_calls.read_run)
    wait = _verb(run_calls.wait_for_run)
    stdin = _verb(run_calls.type_into_run)
    kill = _verb(run_calls.kill_run)
    delete = _verb(run_calls.delete_run)

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

    def follow(
        self,
        run_id: str,
        *,
        cursor: int = 0,
        stderr_cursor: int = 0,
        format: FormatName | None = None,  # noqa: A002
        timeout: Duration | None = None,
    ) -> Generator[Event, None, None]:
        """Yield the events of both streams from their cursors on, and last a `Result`: when the run has ended.

        With a `timeout`, the result may show the run `running`.
        """
        return self._sender.events(
            follow_known(run_id, cursor=cursor, stderr_cursor=stderr_cursor, format=format, timeout=timeout)
        )


class Files(_Part):
    """Files below the daemon's allowed directories."""

    view = _verb(file_calls.view)
    read = _verb(file_calls.read)
    create = _verb(file_calls.create)
    delete = _verb(file_calls.delete)
    move = _verb(file_calls.move)
    update = _verb(file_calls.update)
    insert = _verb(file_calls.insert)
    replace = _verb(file_calls.replace)
    undo = _verb(file_calls.undo)
    search = _verb(file_calls.search)
    find = _verb(file_calls.find)
    read_raw = _verb(file_calls.read_raw)
    write_raw = _verb(file_calls.write_raw)


class Tools(_Part):
    """The daemon's tools for a model."""

    list = _verb(shell_calls.list_tools)
    call = _verb(shell_calls.call_tool)


class Client(_Shell):
    """A daemon, and its main shell. As a context manager its connections are closed at the end."""

    startup = _verb(shell_calls.startup)
    exec = _verb(shell_calls.execute)
    shutdown = _verb(shell_calls.shutdown)
    health = _verb(shell_calls.health)
    metadata = _verb(shell_calls.metadata)

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
        super().__init__(_Sender(Connection(url, key, timeout, retries or Retries()), transport), "")
        self.url = self._sender.connection.url
        self.sessions = Sessions(self._sender, "/sessions")
        self.runs = Runs(self._sender, "/runs")
        self.files = Files(self._sender, "/files")
        self.tools = Tools(self._sender, "/tools")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def exec_stream(self, command: str, **options: Unpack[RunOptions]) -> Generator[Event, None, None]:
        """Run a command in a shell of its own; yield its output as it is written, and last a `Result`."""
        return self._sender.events(follow_new("/exec", command, options))

    def close(self) -> None:
        """Close the connections; runs and sessions stay."""
        self._sender.http.close()
