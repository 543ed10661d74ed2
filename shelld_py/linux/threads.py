"""A pool of threads that makes do with those that it has, where the system gives no more.

All of a container's may be taken by what a shell has started (the limit of its pids counts them). Knows nothing of what
is done in the threads.
"""

from concurrent.futures import ThreadPoolExecutor

from shelld_py.errors import Overloaded


class ThreadPool(ThreadPoolExecutor):
    """As Python's, which raises where no thread can be started, but leaves the work to be done at any time later."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()  # what was submitted just now, for nobody takes anything
                raise Overloaded("No thread can be started just now: try again later.") from None
