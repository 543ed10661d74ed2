"""The helper processes of the daemon: this program again, asked for by `shelld-py --helper NAME`.

So they start wherever the daemon does: by an interpreter where there is one, and in a bundle, where `sys.executable` is
the bundle itself, by that. Knows nothing of what they do, and imports nothing that a small one would pay for.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Final

_MODULES: Final = {
    "call": "shelld_py.files.blocking",
    "changes": "shelld_py.files.tree_changes",
    "keeper": "shelld_py.bash.keeper",
    "lines": "shelld_py.output.line_search_process",
    "port": "shelld_py.linux.held_port",
}
"""Where the `serve` of each helper is."""
_START: Final = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(sys.argv.pop(1)); "
    "from shelld_py.helpers import serve; serve(sys.argv[2])"
)
"""What an interpreter is told: it starts bare, without `site`, and imports from where we do. A helper that needs only
the standard library is ready in some 20 ms."""


def helper_command(name: str) -> list[str]:
    """Return the command that starts the helper `name`; it speaks on standard input and output."""
    own = ["--helper", name]
    if getattr(sys, "frozen", False):
        return [sys.executable, *own]
    paths = [str(Path(__file__).parent.parent), *filter(os.path.isabs, sys.path)]
    return [sys.executable, "-I", "-S", "-W", "ignore", "-c", _START, os.pathsep.join(paths), os.pathsep, *own]


def serve(name: str) -> None:
    """Be the helper `name` until it is done."""
    importlib.import_module(_MODULES[name]).serve()
