"""Starts of bash, beside each other."""

import asyncio
import os

from shelld_py.bash.spawning import in_time


def test_starts_that_share_the_processors_have_more_time() -> None:
    """Ten for each processor are ready after three times what one alone has; one that is alone is late by then."""
    seconds = 0.5

    async def test() -> None:
        events = [asyncio.Event() for _ in range(10 * len(os.sched_getaffinity(0)))]
        starts = [asyncio.ensure_future(in_time(event, seconds)) for event in events]
        await asyncio.sleep(3 * seconds)
        assert not any(start.done() for start in starts)
        for event in events:
            event.set()
        assert all(await asyncio.gather(*starts))
        assert not await in_time(asyncio.Event(), 0.05)

    asyncio.run(test())
