"""Threads where the system gives no more of them."""

import subprocess
import sys

NO_MORE = """
import resource
from pathlib import Path
from shelld_py.errors import Overloaded
from shelld_py.linux.threads import ThreadPool

def let_start(some):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (unlimited if some else used + (4 << 20), unlimited))

done = []
pool = ThreadPool(4)
let_start(False)
try:
    pool.submit(done.append, "refused")
except Overloaded as error:
    done.append(error.code)
let_start(True)
pool.submit(done.append, "first").result()
let_start(False)
for future in [pool.submit(done.append, number) for number in range(3)]:
    future.result()
print(*done)
"""


def test_work_is_done_by_the_threads_that_there_are() -> None:
    """Without any it is refused, and is not done later."""
    done = subprocess.run([sys.executable, "-c", NO_MORE], capture_output=True, text=True, check=True)
    assert done.stdout == "overloaded first 0 1 2\n"
