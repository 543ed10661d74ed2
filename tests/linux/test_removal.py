"""Removing a directory with all that is in it."""

import os
import subprocess
from pathlib import Path

from shelld_py.linux.removal import remove_tree


def test_a_tree_of_any_depth(tmp_path: Path) -> None:
    """More levels than a path can name, or a function call itself, go as one does."""
    top = tmp_path / "top"
    top.mkdir()
    try:
        here = os.open(top, os.O_RDONLY)
        for _ in range(1200):
            os.mkdir("directory", dir_fd=here)
            below = os.open("directory", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
        os.close(here)
        remove_tree(str(top))
        assert list(tmp_path.iterdir()) == []
    finally:  # pytest could not remove it
        subprocess.run(["rm", "-rf", top], check=True)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link goes, what it points to stays; a link in place of the directory itself is left."""
    kept, top = tmp_path / "kept", tmp_path / "top"
    kept.mkdir()
    (kept / "file").write_text("kept")
    top.mkdir()
    (top / "directory").symlink_to(kept)
    (top / "file").symlink_to(kept / "file")
    (tmp_path / "link").symlink_to(kept)
    remove_tree(str(top))
    remove_tree(str(tmp_path / "link"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "link"]
    assert (kept / "file").read_text() == "kept"


def test_directories_without_permissions(tmp_path: Path) -> None:
    """A directory that its owner may not enter goes, too; what is not there is gone already."""
    top = tmp_path / "top"
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").write_text("x")
    (top / "closed" / "inner").chmod(0)
    (top / "closed").chmod(0)
    top.chmod(0)
    remove_tree(str(top))
    remove_tree(str(top))
    assert list(tmp_path.iterdir()) == []
