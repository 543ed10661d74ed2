"""The registry of shells: who is found, who counts, who expires, by a clock that the test turns."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shelld_py.errors import InvalidRequest, SessionNotFound, ShuttingDown, TooManySessions
from shelld_py.models import RunStatus, ShellState
from shelld_py.request_data import Command, StartupRequest
from shelld_py.shells.registry import MAIN, Shells
from shelld_py.shells.shell import Shell
from shelld_py.shells.startup import ShellContext
from tests.shells.places import until, with_context


class Clock:
    """A clock that goes only when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def with_shells(directory: Path, test: Callable[[Shells, Clock], Awaitable[None]], **settings: Any) -> None:
    """Run `test` with a registry, and end all in it."""

    async def body(context: ShellContext) -> None:
        clock = Clock()
        shells = Shells(
            partial(Shell, context=context),
            most=settings.get("most", 0),
            idle=settings.get("idle", 0.0),
            lifetime=settings.get("lifetime", 0.0),
            clock=clock,
        )
        await test(shells, clock)
        await shells.end_all("The test is over.")
        assert shells.all == [shells.main]

    with_context(directory, body)


def test_one_look_up_for_all_kinds(tmp_path: Path) -> None:
    """The main shell is always there, sessions and one-shots as long as they live."""

    async def test(shells: Shells, _: Clock) -> None:
        assert shells.get(MAIN) is shells.main
        session = await shells.open(StartupRequest())
        run = await shells.one_shot(Command(text="read x"), None)
        one_shot = shells.get(run.session_id)
        assert [shells.get(shell.session_id) for shell in shells.all] == [shells.main, session, one_shot]
        assert shells.sessions == [session]
        assert [shells.is_one_shot(shell) for shell in shells.all] == [False, False, True]
        await shells.close(session.session_id, "The test ended it.")
        with pytest.raises(SessionNotFound):
            shells.get(session.session_id)
        assert shells.find(session.session_id) is None
        for other in (MAIN, one_shot.session_id):
            with pytest.raises(SessionNotFound):
                await shells.close(other, "They are no sessions.")
        await shells.end_one_shot(one_shot)
        await shells.end_one_shot(one_shot)
        assert (run.status, shells.all) == (RunStatus.KILLED, [shells.main])

    with_shells(tmp_path, test)


def test_a_one_shot_goes_with_what_it_left(tmp_path: Path) -> None:
    """Not before that, and by itself."""

    async def test(shells: Shells, _: Clock) -> None:
        run = await shells.one_shot(Command(text="until [ -e go ]; do sleep 0.01; done &"), None)
        await run.wait(60)
        assert shells.find(run.session_id) is not None
        (tmp_path / "work/go").touch()
        await until(lambda: shells.find(run.session_id) is None)

    with_shells(tmp_path, test)


def test_what_cannot_begin_leaves_no_shell(tmp_path: Path) -> None:
    """Neither a session that cannot be started nor a command that is refused."""

    async def test(shells: Shells, _: Clock) -> None:
        with pytest.raises(InvalidRequest):
            await shells.open(StartupRequest(working_directory="/not/there"))
        with pytest.raises(InvalidRequest):
            await shells.one_shot(Command(text="true", directory="/not/there"), None)
        assert shells.all == [shells.main]

    with_shells(tmp_path, test)


def test_sessions_alone_count(tmp_path: Path) -> None:
    """The bound is on sessions, not on the main shell or on single commands."""

    async def test(shells: Shells, _: Clock) -> None:
        await shells.main.start(StartupRequest())
        await shells.one_shot(Command(text="read x"), None)
        session = await shells.open(StartupRequest())
        with pytest.raises(TooManySessions, match=r"limits\.max_sessions is 1"):
            await shells.open(StartupRequest())
        await shells.close(session.session_id, "The test ended it.")
        await shells.open(StartupRequest())

    with_shells(tmp_path, test, most=1)


def test_a_session_expires_when_nobody_asks_for_it(tmp_path: Path) -> None:
    """Being asked for counts, being looked at does not; while a command runs it is not idle."""

    async def test(shells: Shells, clock: Clock) -> None:
        session = await shells.open(StartupRequest())
        name = session.session_id
        clock.now += 59
        shells.look(name)
        shells.get(name)
        clock.now += 59
        shells.look(name)
        assert shells.find(name) is session
        run = session.submit(Command(text="read x"))
        clock.now += 1000
        shells.look(name)
        assert shells.find(name) is session
        await session.write_stdin(b"\n", eof=False, offset=None)
        await run.wait(60)
        clock.now += 59
        shells.look(name)
        assert shells.find(name) is session
        clock.now += 1
        shells.look(name)
        assert shells.find(name) is None
        await until(lambda: session.state is ShellState.AVAILABLE)

    with_shells(tmp_path, test, idle=60.0)


def test_a_session_does_not_outlive_its_time(tmp_path: Path) -> None:
    """However much it is asked for."""

    async def test(shells: Shells, clock: Clock) -> None:
        session = await shells.open(StartupRequest())
        for _ in range(10):
            clock.now += 10
            shells.get(session.session_id)
            shells.look(session.session_id)
        assert shells.find(session.session_id) is None

    with_shells(tmp_path, test, lifetime=100.0)


def test_renewal(tmp_path: Path) -> None:
    """After the end of all there is a main shell again, which has never run anything."""

    async def test(shells: Shells, _: Clock) -> None:
        before = shells.main
        await before.start(StartupRequest())
        run = before.submit(Command(text="true"))
        await run.wait(60)
        await shells.end_all("The test renews them.")
        with pytest.raises(ShuttingDown):
            await shells.open(StartupRequest())
        shells.renew()
        shells.ending = False
        assert shells.main is not before
        assert (shells.main.state, shells.main.last_run) == (ShellState.AVAILABLE, None)
        await shells.main.start(StartupRequest())

    with_shells(tmp_path, test)
