"""How many descriptors the daemon can still open."""

import os
import subprocess
import sys

import pytest

HIDE = "mount --make-rprivate / && mount -t tmpfs none /proc && exec "


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_descriptors_are_counted_where_proc_is_hidden() -> None:
    """A command of root's that mounts something over /proc does not keep the daemon from taking connections."""
    count = "import os; from shelld_py.linux import descriptors as d; a = d.free(); os.dup(0); print(a - d.free())"
    command = ["unshare", "--mount", "sh", "-c", HIDE + '"$@"', "sh", sys.executable, "-c", count]
    seen = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if "permission" in seen.stderr.lower() and "unshare" in seen.stderr:
        pytest.skip(seen.stderr)
    assert seen.stdout == "1\n", seen.stderr
