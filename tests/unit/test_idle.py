"""The idle timer: when it calls, and when it must not. The clock is the test's."""

import asyncio

from shelld_py.idle import NOTICE, IdleTimer


class Time:
    """A clock that stands still, and a timer that goes by it."""

    def __init__(self, timeout: float) -> None:
        self.now = 1000.0
        self.busy = False
        self.ended: list[float] = []
        self.notices: list[tuple[float, float]] = []
        self.looks = 0
        self.timer = IdleTimer(
            timeout,
            lambda: self.ended.append(self.now),
            on_notice=lambda left: self.notices.append((self.now, left)),
            busy=lambda: self.busy,
            clock=lambda: self.now,
        )
        self._next = self._look()

    def _look(self) -> float:
        self.looks += 1
        delay = self.timer.look()
        return self.now + delay if delay else float("inf")

    def passes(self, seconds: float) -> None:
        """Let time pass, with the looks that the timer asks for."""
        end = self.now + seconds
        while self._next <= end:
            self.now = self._next
            self._next = self._look()
        self.now = end


def test_it_calls_when_no_request_came() -> None:
    """Once, at its time and not before."""
    time = Time(100)
    time.passes(99.9)
    assert time.ended == []
    time.passes(1000)
    assert time.ended == [1100.0]


def test_a_request_in_progress_keeps_it() -> None:
    """However long it takes; the time counts from the end of the last one."""
    time = Time(100)
    time.timer.begin()
    time.timer.begin()
    time.passes(150)
    time.timer.end()
    time.passes(500)
    assert (time.ended, time.timer.idle) == ([], 0)
    time.timer.end()
    time.passes(99)
    assert (time.ended, time.timer.idle) == ([], 99)
    time.passes(100)
    assert time.ended == [1750.0]


def test_every_request_begins_the_time_again() -> None:
    """Requests that come often enough keep it from calling, and cost it hardly a look."""
    time = Time(100)
    for _ in range(20):
        time.timer.begin()
        time.timer.end()
        time.passes(60)
    assert time.ended == []
    assert time.looks < 30
    time.passes(100)
    assert time.ended == [1000.0 + 19 * 60 + 100]


def test_the_end_is_announced() -> None:
    """Once for each time of rest, `NOTICE` before its end, with what is left."""
    time = Time(1800)
    time.passes(1600)
    assert time.notices == [(1000 + 1800 - NOTICE, NOTICE)]
    time.timer.begin()
    time.timer.end()
    time.passes(1799)
    assert len(time.notices) == 2
    assert time.notices[1] == (2600 + 1800 - NOTICE, NOTICE)
    time.passes(2)
    assert time.ended == [2600 + 1800]


def test_a_short_time_is_not_announced() -> None:
    """Where the whole time is no longer than the notice, the first line of the log has said it."""
    time = Time(NOTICE)
    time.passes(2 * NOTICE)
    assert (time.notices, len(time.ended)) == ([], 1)


def test_what_goes_on_without_a_request_keeps_it() -> None:
    """Where runs count, the time begins when they have ended, or up to a minute later."""
    time = Time(600)
    time.passes(200)
    time.busy = True
    time.passes(10_000)
    assert time.ended == time.notices == []
    time.busy = False
    time.passes(599)
    assert time.ended == []
    time.passes(62)
    assert len(time.ended) == 1


def test_zero_is_never() -> None:
    """And a timer that was stopped does not call either."""
    never, stopped = Time(0), Time(10)
    never.passes(1_000_000)
    stopped.timer.stop()
    stopped.passes(1_000_000)
    assert never.ended == stopped.ended == []


def test_it_calls_by_the_event_loop() -> None:
    """`start` has it look by itself."""

    async def body() -> None:
        called = asyncio.Event()
        timer = IdleTimer(0.05, called.set)
        timer.start()
        await asyncio.wait_for(called.wait(), 60)
        timer.stop()

    asyncio.run(body())
