"""Random operations against a model in memory, and then undo all the way back."""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shelld_py.config import FileSettings
from shelld_py.errors import FileAlreadyExists, FileNotFound, NothingToUndo, ShelldError, TextNotFound
from shelld_py.files import (
    CreateRequest,
    DeleteRequest,
    FileService,
    InsertRequest,
    MoveRequest,
    ReadRequest,
    ReplaceRequest,
    UndoRequest,
    UpdateRequest,
)
from tests.daemons import LONG

NAMES = st.sampled_from(["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"])
CONTENTS = st.text(alphabet="ab\né", max_size=12)
T = TypeVar("T")
Present = tuple[bytes, int]


class Files(RuleBasedStateMachine):
    """The model: for each name, the contents and modes that it had, the present one last; None is absence."""

    def __init__(self) -> None:
        """Start with an empty directory."""
        super().__init__()
        self.top = Path(tempfile.mkdtemp())
        self.root = self.top / "work"
        self.root.mkdir()
        self.runner = asyncio.Runner()
        self.service = FileService(
            FileSettings(max_events_per_file=1000),
            base_directory=str(self.root),
            allowed_directories=[str(self.root)],
            backup_directory=str(self.top / "backups"),
        )
        self.past: dict[str, list[Present | None]] = {}
        umask = os.umask(0)
        os.umask(umask)
        self.new_mode = 0o666 & ~umask

    def present(self, name: str) -> Present | None:
        """Return what the model says that the file is now."""
        return self.past.get(name, [None])[-1]

    def attempt(self, work: Coroutine[Any, Any, T], expected: type[ShelldError] | None) -> T | None:
        """Run an operation, which should fail as expected."""
        if expected is None:
            return self.runner.run(work)
        with pytest.raises(expected):
            self.runner.run(work)
        return None

    def changed(self, name: str, body: str, mode: int) -> None:
        """Note a change in the model."""
        self.past.setdefault(name, [None]).append((body.encode(), mode))

    @rule(name=NAMES, content=CONTENTS)
    def create(self, name: str, content: str) -> None:
        """Fails where there is a file."""
        failure = FileAlreadyExists if self.present(name) else None
        self.attempt(self.service.perform(CreateRequest(path=name, content=content)), failure)
        if not failure:
            self.changed(name, content, self.new_mode)

    @rule(name=NAMES, content=CONTENTS)
    def update(self, name: str, content: str) -> None:
        """Keeps the mode."""
        now = self.present(name)
        self.attempt(self.service.perform(UpdateRequest(path=name, content=content)), None if now else FileNotFound)
        if now:
            self.changed(name, content, now[1])

    @rule(name=NAMES, content=CONTENTS)
    def insert_at_the_beginning(self, name: str, content: str) -> None:
        """With a line break where there is something to run into."""
        now = self.present(name)
        request = InsertRequest(path=name, content=content, line=0)
        self.attempt(self.service.perform(request), None if now else FileNotFound)
        if now:
            gap = "\n" if content and now[0] and not content.endswith("\n") else ""
            self.changed(name, content + gap + now[0].decode(), now[1])

    @rule(name=NAMES, old=st.sampled_from(["a", "b", "\n", "ab"]), new=st.sampled_from(["", "é", "aa\n"]))
    def replace(self, name: str, old: str, new: str) -> None:
        """Fails where there is nothing to replace."""
        now = self.present(name)
        failure = FileNotFound if not now else None if old.encode() in now[0] else TextNotFound
        result = self.attempt(self.service.perform(ReplaceRequest(path=name, old_string=old, new_string=new)), failure)
        if now and result:
            assert result.replacements == now[0].count(old.encode())
            self.changed(name, now[0].decode().replace(old, new), now[1])

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Fails where there is no file."""
        now = self.present(name)
        self.attempt(self.service.perform(DeleteRequest(path=name)), None if now else FileNotFound)
        if now:
            self.past[name].append(None)

    @rule(source=NAMES, destination=NAMES, overwrite=st.booleans())
    def move(self, source: str, destination: str, *, overwrite: bool) -> None:
        """Ends the history of both names."""
        if source == destination:
            return
        now = self.present(source)
        failure = (
            FileNotFound if not now else FileAlreadyExists if self.present(destination) and not overwrite else None
        )
        request = MoveRequest(source_path=source, destination_path=destination, overwrite=overwrite)
        self.attempt(self.service.perform(request), failure)
        if not failure:
            self.past[source], self.past[destination] = [None], [now]

    @rule(name=NAMES, mode=st.sampled_from([0o600, 0o644, 0o755]), content=CONTENTS)
    def change_mode_and_update(self, name: str, mode: int, content: str) -> None:
        """A mode that something else gave is part of what a later undo brings back.

        The steps before it no longer fit the file, so all histories start anew.
        """
        if now := self.present(name):
            (self.root / name).chmod(mode)
            self.runner.run(self.service.reset())
            self.past = {other: [states[-1]] for other, states in self.past.items()}
            self.past[name] = [(now[0], mode)]
            self.update(name, content)

    @rule(name=NAMES)
    def undo(self, name: str) -> None:
        """One step back, where there is one."""
        states = self.past.get(name, [None])
        failure = None if len(states) > 1 else NothingToUndo
        result = self.attempt(self.service.perform(UndoRequest(path=name)), failure)
        if result:
            states.pop()
            assert result.undo_depth == len(states) - 1

    @rule(name=NAMES, content=CONTENTS, times=st.integers(1, 3))
    def force_undos_over_a_change_of_something_else(self, name: str, content: str, times: int) -> None:
        """Back by force, and forward again to that change; then it is taken away, and the history still fits."""
        states = self.past.get(name, [None])
        now, times = states[-1], min(times, len(states) - 1)
        if now is None or not times:
            return
        file = self.root / name
        other = b"other " + content.encode()
        file.write_bytes(other)
        for back in range(1, times + 1):
            self.runner.run(self.service.perform(UndoRequest(path=name, force=True)))
            assert self.on_disk(name) == states[-1 - back]
        for back in range(times, 0, -1):
            assert self.on_disk(name) == states[-1 - back]
            self.runner.run(self.service.perform(UndoRequest(path=name)))
        assert self.on_disk(name) == (other, now[1])
        file.write_bytes(now[0])

    def on_disk(self, name: str) -> Present | None:
        """Return what the file is in truth."""
        file = self.root / name
        return (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) if file.exists() else None

    @rule(name=NAMES)
    def read(self, name: str) -> None:
        """Shows what the model has."""
        now = self.present(name)
        result = self.attempt(self.service.perform(ReadRequest(path=name)), None if now else FileNotFound)
        if now and result:
            assert result.content.encode() == now[0]

    @precondition(lambda self: any(len(states) > 1 for states in self.past.values()))
    @rule()
    def undo_everything(self) -> None:
        """Back to the oldest state of each file, compared at every step."""
        for name, states in self.past.items():
            while len(states) > 1:
                self.runner.run(self.service.perform(UndoRequest(path=name)))
                states.pop()
                self.files_are_as_the_model_says()

    @invariant()
    def files_are_as_the_model_says(self) -> None:
        """Bytes, modes and existence, of these files and no others."""
        found = {
            str(path.relative_to(self.root)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
            for path in self.root.rglob("*")
            if path.is_file()
        }
        assert found == {name: states[-1] for name, states in self.past.items() if states[-1] is not None}

    def teardown(self) -> None:
        """Undo what is left, and see that no backup remains."""
        self.undo_everything()
        self.runner.run(self.service.aclose())
        assert os.listdir(self.top / "backups") == []
        self.runner.close()
        shutil.rmtree(self.top)


Files.TestCase.settings = settings(
    max_examples=400 if LONG else 15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_random_operations_agree_with_the_model_and_can_all_be_undone = Files.TestCase
