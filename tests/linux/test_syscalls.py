"""System calls that Python lacks."""

import subprocess
import sys

LARGE_BLOCKS = """
import resource
from pathlib import Path
from shelld_py.linux.syscalls import return_large_blocks
return_large_blocks()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
before = resident()
block = b"x" * (20 << 20)
del block
blocks = [b"x" * (9 << 20) for _ in range(4)]
kept = [b"y" * 1000 for _ in range(100)]
del blocks
print(resident() - before)
"""


def test_memory_of_large_blocks_is_given_back() -> None:
    """Also where something small that was allocated later is kept."""
    done = subprocess.run([sys.executable, "-c", LARGE_BLOCKS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5
