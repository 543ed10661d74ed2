"""What a client can be asked, written once: the verbs of each part of it, with the builders that make their calls.

A verb returns its result where the part blocks, and something to await where it does not; the types say so for
each. client.py makes parts of these tables, and adds what sends and what makes objects.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from shelld_py.client import events, file_requests, requests, run_requests
from shelld_py.client.call import Call, Duration, T, segment
from shelld_py.client.events import Following
from shelld_py.client.run_requests import Reply

P = ParamSpec("P")
Way = TypeVar("Way")
Blocking_co = TypeVar("Blocking_co", covariant=True)
Awaiting_co = TypeVar("Awaiting_co", covariant=True)
Count_co = TypeVar("Count_co", covariant=True)
Reply_co = TypeVar("Reply_co", covariant=True)


class Sender(Protocol):
    """What sends calls, and either blocks meanwhile or returns something to await."""

    def send(self, build: Callable[[], Call[Any]]) -> Any:
        """Give the result of the call that `build` makes."""

    def events(self, following: Following[Any]) -> Any:
        """Give events until the last."""


class Blocking:
    """Says of a part that its verbs return when they are done."""


class Awaiting:
    """Says of a part that its verbs are to be awaited."""


class Part(Generic[Way]):
    """A part of a client: the paths below `base`."""

    def __init__(self, sender: Sender, base: str) -> None:
        self._sender = sender
        self._base = base


class Verb(Protocol[Blocking_co, Awaiting_co]):
    """A method of a part: of one type where the part blocks, of another where its verbs are to be awaited."""

    @overload
    def __get__(self, part: None, kind: type, /) -> Self: ...
    @overload
    def __get__(self, part: Part[Blocking], kind: type, /) -> Blocking_co: ...
    @overload
    def __get__(self, part: Part[Awaiting], kind: type, /) -> Awaiting_co: ...


class Typing(Protocol[Count_co, Reply_co]):
    """`stdin` of a shell: how much was accepted, or with `wait` what came of it."""

    @overload
    def __call__(
        self,
        text: str | bytes = "",
        *,
        keys: Sequence[str] = (),
        paste: str | None = None,
        eof: bool = False,
        offset: int | None = None,
    ) -> Count_co: ...
    @overload
    def __call__(
        self,
        text: str | bytes = "",
        *,
        keys: Sequence[str] = (),
        paste: str | None = None,
        eof: bool = False,
        offset: int | None = None,
        wait: Duration,
    ) -> Reply_co: ...


class TypingIntoRun(Protocol[Count_co, Reply_co]):
    """The same for a run that is named."""

    @overload
    def __call__(
        self,
        run_id: str,
        text: str | bytes = "",
        *,
        keys: Sequence[str] = (),
        paste: str | None = None,
        eof: bool = False,
        offset: int | None = None,
    ) -> Count_co: ...
    @overload
    def __call__(
        self,
        run_id: str,
        text: str | bytes = "",
        *,
        keys: Sequence[str] = (),
        paste: str | None = None,
        eof: bool = False,
        offset: int | None = None,
        wait: Duration,
    ) -> Reply_co: ...


TypingVerb = Verb[Typing[int, Reply], Typing[Coroutine[Any, Any, int], Coroutine[Any, Any, Reply]]]
TypingIntoRunVerb = Verb[TypingIntoRun[int, Reply], TypingIntoRun[Coroutine[Any, Any, int], Coroutine[Any, Any, Reply]]]


def verb(
    build: Callable[Concatenate[str, P], Call[T]],
) -> Verb[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the method that sends the call which `build` makes."""

    @wraps(build)
    def method(self: Part[Any], /, *arguments: P.args, **options: P.kwargs) -> Any:
        return self._sender.send(partial(build, self._base, *arguments, **options))

    return cast("Verb[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]", method)


def event_verb(
    build: Callable[Concatenate[str, P], Following[T]],
) -> Verb[Callable[P, Generator[T, None, None]], Callable[P, AsyncGenerator[T, None]]]:
    """Return the method that yields the events which `build` says how to follow."""

    @wraps(build)
    def method(self: Part[Any], /, *arguments: P.args, **options: P.kwargs) -> Any:
        return self._sender.events(build(self._base, *arguments, **options))

    return cast("Verb[Callable[P, Generator[T, None, None]], Callable[P, AsyncGenerator[T, None]]]", method)


class ShellVerbs(Part[Way]):
    """The verbs of a shell."""

    run = verb(run_requests.run)
    stream = event_verb(events.follow_run)
    kill = verb(run_requests.kill)
    recycle = verb(requests.recycle)
    status = verb(requests.status)
    state = verb(requests.state)
    output = verb(run_requests.output)
    screen = verb(run_requests.screen)
    stdin = cast("TypingVerb", verb(run_requests.stdin))
    resize = verb(requests.resize)


class DaemonVerbs(ShellVerbs[Way]):
    """The verbs of a daemon and its main shell."""

    startup = verb(requests.startup)
    exec = verb(run_requests.execute)
    exec_stream = event_verb(events.follow_exec)
    shutdown = verb(requests.shutdown)
    health = verb(requests.health)
    metadata = verb(requests.metadata)
    ports = verb(requests.ports)
    events = event_verb(events.follow_daemon)
    link_port = verb(requests.link_port)


class SessionVerbs(ShellVerbs[Way]):
    """The verbs of a session."""

    def __init__(self, sender: Sender, session_id: str) -> None:
        super().__init__(sender, f"/sessions/{segment(session_id)}")
        self.session_id = session_id

    close = verb(requests.close_shell)


class SessionsVerbs(Part[Way]):
    """The verbs for all sessions."""

    _open = verb(requests.open_session)
    list = verb(requests.list_sessions)
    get = verb(requests.get_session)
    close = verb(requests.close_session)


class Observers(Part[Way]):
    """The keys that only look."""

    add = verb(requests.add_observer)
    list = verb(requests.list_observers)
    remove = verb(requests.remove_observer)


class RunsVerbs(Part[Way]):
    """The verbs for runs."""

    list = verb(run_requests.list_runs)
    get = verb(run_requests.get_run)
    output = verb(run_requests.read_run)
    screen = verb(run_requests.screen_of_run)
    recording = verb(run_requests.recording_of_run)
    wait = verb(run_requests.wait_for_run)
    follow = event_verb(events.follow_known)
    stdin = cast("TypingIntoRunVerb", verb(run_requests.type_into_run))
    kill = verb(run_requests.kill_run)
    delete = verb(run_requests.delete_run)


class Files(Part[Way]):
    """Files below the daemon's allowed directories."""

    view = verb(file_requests.view)
    read = verb(file_requests.read)
    create = verb(file_requests.create)
    delete = verb(file_requests.delete)
    move = verb(file_requests.move)
    update = verb(file_requests.update)
    insert = verb(file_requests.insert)
    replace = verb(file_requests.replace)
    undo = verb(file_requests.undo)
    history = verb(file_requests.history)
    search = verb(file_requests.search)
    find = verb(file_requests.find)
    read_raw = verb(file_requests.read_raw)
    write_raw = verb(file_requests.write_raw)
    read_archive = verb(file_requests.read_archive)
    write_archive = verb(file_requests.write_archive)
    upload = verb(file_requests.upload)


class Tools(Part[Way]):
    """The daemon's tools for a model."""

    list = verb(requests.list_tools)
    call = verb(requests.call_tool)
