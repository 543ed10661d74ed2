"""What a client can be asked, written once: the verbs of each part of it, with the builders that make their calls.

A verb returns its result where the part blocks, and something to await where it does not; the types say so for
each. sync.py and asynchronous.py make parts of these tables, and add what sends and what makes objects.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast, overload

from shelld_py.client import events, file_calls, run_calls, shell_calls
from shelld_py.client.calls import Call, T
from shelld_py.client.events import Event, Following

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


class Sender(Protocol):
    """What sends calls, and either blocks meanwhile or returns something to await."""

    def send(self, build: Callable[[], Call[Any]]) -> Any:
        """Give the result of the call that `build` makes."""

    def events(self, following: Following) -> Any:
        """Give events until the last."""


class Part:
    """A part of a client: the paths below `base`."""

    def __init__(self, sender: Sender, base: str) -> None:
        self._sender = sender
        self._base = base


class BlockingPart(Part):
    """A part whose verbs return when they are done."""


class AwaitingPart(Part):
    """A part whose verbs are to be awaited."""


class Verb(Protocol[P, T_co]):
    """A method that asks for one thing."""

    @overload
    def __get__(self, part: None, kind: type, /) -> Self: ...
    @overload
    def __get__(self, part: BlockingPart, kind: type, /) -> Callable[P, T_co]: ...
    @overload
    def __get__(self, part: AwaitingPart, kind: type, /) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


class EventVerb(Protocol[P]):
    """A method that yields events."""

    @overload
    def __get__(self, part: None, kind: type, /) -> Self: ...
    @overload
    def __get__(self, part: BlockingPart, kind: type, /) -> Callable[P, Generator[Event, None, None]]: ...
    @overload
    def __get__(self, part: AwaitingPart, kind: type, /) -> Callable[P, AsyncGenerator[Event, None]]: ...


def verb(build: Callable[Concatenate[str, P], Call[T]]) -> Verb[P, T]:
    """Return the method that sends the call which `build` makes."""

    @wraps(build)
    def method(self: Part, /, *arguments: P.args, **options: P.kwargs) -> Any:
        return self._sender.send(partial(build, self._base, *arguments, **options))

    return cast("Verb[P, T]", method)


def event_verb(build: Callable[Concatenate[str, P], Following]) -> EventVerb[P]:
    """Return the method that yields the events which `build` says how to follow."""

    @wraps(build)
    def method(self: Part, /, *arguments: P.args, **options: P.kwargs) -> Any:
        return self._sender.events(build(self._base, *arguments, **options))

    return cast("EventVerb[P]", method)


class ShellVerbs:
    """The verbs of a shell."""

    run = verb(shell_calls.run)
    stream = event_verb(events.follow_run)
    kill = verb(shell_calls.kill)
    recycle = verb(shell_calls.recycle)
    status = verb(shell_calls.status)
    output = verb(shell_calls.output)
    stdin = verb(shell_calls.stdin)
    resize = verb(shell_calls.resize)


class DaemonVerbs(ShellVerbs):
    """The verbs of a daemon and its main shell."""

    startup = verb(shell_calls.startup)
    exec = verb(shell_calls.execute)
    exec_stream = event_verb(events.follow_exec)
    shutdown = verb(shell_calls.shutdown)
    health = verb(shell_calls.health)
    metadata = verb(shell_calls.metadata)


class SessionVerbs(ShellVerbs):
    """The verbs of a session."""

    close = verb(shell_calls.close_shell)


class SessionsVerbs:
    """The verbs for all sessions."""

    _open = verb(shell_calls.open_session)
    list = verb(shell_calls.list_sessions)
    get = verb(shell_calls.get_session)
    close = verb(shell_calls.close_session)


class RunsVerbs:
    """The verbs for runs."""

    list = verb(run_calls.list_runs)
    get = verb(run_calls.get_run)
    output = verb(run_calls.read_run)
    wait = verb(run_calls.wait_for_run)
    follow = event_verb(events.follow_known)
    stdin = verb(run_calls.type_into_run)
    kill = verb(run_calls.kill_run)
    delete = verb(run_calls.delete_run)


class FilesVerbs:
    """The verbs for files."""

    view = verb(file_calls.view)
    read = verb(file_calls.read)
    create = verb(file_calls.create)
    delete = verb(file_calls.delete)
    move = verb(file_calls.move)
    update = verb(file_calls.update)
    insert = verb(file_calls.insert)
    replace = verb(file_calls.replace)
    undo = verb(file_calls.undo)
    search = verb(file_calls.search)
    find = verb(file_calls.find)
    read_raw = verb(file_calls.read_raw)
    write_raw = verb(file_calls.write_raw)


class ToolsVerbs:
    """The verbs for a model's tools."""

    list = verb(shell_calls.list_tools)
    call = verb(shell_calls.call_tool)
