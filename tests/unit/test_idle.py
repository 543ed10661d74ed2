"""The idle timer: when it calls, and when it must not."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from shelld_py.idle import IdleTimer


def with_timer(timeout: float, test: Callable[[IdleTimer, list[float]], Awaitable[None]]) -> None:
    """Run `test` with a timer and the times of its calls."""

    async def body() -> None:
        calls: list[float] = []
        timer = IdleTimer(timeout, lambda: calls.append(time.monotonic()))
        async with asyncio.timeout(10):
            await test(timer, calls)
        timer.stop()

    asyncio.run(body())


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition` is true; the time is bounded by the test's own."""
    while not condition():
        await asyncio.sleep(0.005)


def test_it_calls_when_no_request_came() -> None:
    """Once, and not before its time."""

    async def test(timer: IdleTimer, calls: list[float]) -> None:
        begin = time.monotonic()
        timer.start()
        await until(lambda: calls)
        assert calls[0] - begin >= 0.099
        await asyncio.sleep(0.15)
        assert len(calls) == 1

    with_timer(0.1, test)


def test_it_does_not_call_while_a_request_is_in_progress() -> None:
    """However long that takes; the time counts from its end."""

    async def test(timer: IdleTimer, calls: list[float]) -> None:
        timer.start()
        timer.begin()
        timer.begin()
        timer.end()
        await asyncio.sleep(0.25)
        assert not calls
        assert timer.idle == 0
        timer.end()
        end = time.monotonic()
        await until(lambda: calls)
        assert calls[0] - end >= 0.099

    with_timer(0.1, test)


def test_every_request_begins_the_time_again() -> None:
    """Requests that come often enough keep it from calling."""

    async def test(timer: IdleTimer, calls: list[float]) -> None:
        timer.start()
        end = 0.0
        for _ in range(20):
            timer.begin()
            timer.end()
            end = time.monotonic()
            await asyncio.sleep(0.02)
        await until(lambda: calls)
        assert calls[0] - end >= 0.199

    with_timer(0.2, test)


def test_it_tells_the_time_since_the_last_request() -> None:
    """Zero while one is in progress."""

    async def test(timer: IdleTimer, calls: list[float]) -> None:
        timer.start()
        await until(lambda: timer.idle >= 0.2)
        timer.begin()
        assert timer.idle == 0
        timer.end()
        assert timer.idle < 0.2
        await until(lambda: timer.idle >= 0.2)

    with_timer(60, test)


def test_zero_is_never() -> None:
    """And a timer that was stopped does not call either."""

    async def never(timer: IdleTimer, calls: list[float]) -> None:
        timer.start()
        await asyncio.sleep(0.1)
        assert not calls

    async def stopped(timer: IdleTimer, calls: list[float]) -> None:
        timer.start()
        timer.stop()
        timer.begin()
        timer.end()
        await asyncio.sleep(0.1)
        assert not calls

    with_timer(0, never)
    with_timer(0.02, stopped)


def test_it_rests_meanwhile() -> None:
    """A period has one wake-up of the loop, whatever the number of requests."""

    async def test(timer: IdleTimer, calls: list[float]) -> None:
        timer.start()
        for _ in range(1000):
            timer.begin()
            timer.end()
        before = time.process_time()
        await until(lambda: calls)
        assert time.process_time() - before < 1
        assert len(calls) == 1

    with_timer(0.1, test)
