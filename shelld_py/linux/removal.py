"""Removes a directory with all that is in it, however deep: what commands wrote there is not bounded by anything.

`shutil.rmtree` calls itself for each level, and fails where there are more than some thousand. Here each directory
that is found is first moved to the top, so that no path grows and nothing is nested any more.
"""

import contextlib
import os
import stat


def remove_tree(path: str) -> None:
    """Remove the directory `path`, as far as this process may; links in it are not followed."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _remove(path)


def _remove(top: str) -> None:
    found = [top]
    moved = 0
    for directory in found:  # grows meanwhile
        with contextlib.suppress(OSError):
            os.chmod(directory, 0o700)
        for entry in _entries(directory):
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                with contextlib.suppress(OSError):  # a directory moves only if it may be written: its `..` changes
                    os.chmod(entry.path, 0o700)
                here = entry.path
                if directory != top:
                    moved += 1
                    here = f"{top}/.removed-{os.getpid()}-{moved}"
                    os.rename(entry.path, here)
                found.append(here)
    for directory in reversed(found):
        with contextlib.suppress(OSError):
            os.rmdir(directory)


def _entries(directory: str) -> list["os.DirEntry[str]"]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return list(entries)
    return []
