"""Random interleavings of what clients do to the shells of one real daemon, against a model in memory.

Clients start commands, wait too briefly, read by cursor, type, kill, recycle and break their connections off, in
three shells at once. Whatever they do: each run has written exactly what its command writes (a beginning of it,
where it was killed), nothing is lost, doubled or given to another run; reads by cursor join to the whole in every
form; and the states are those of the table in shells/states.py.

The default profile does the same every time and takes seconds. SHELLD_TEST_LONG=1 takes minutes and is random.
"""

import json
import re
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shelld_py.shells.states import TABLE, Event, State
from tests.daemons import KEY, LONG, RunningDaemon, alive, running_daemon, wait_for

SHELLS = 3
LEFTOVER = re.compile(rb"\{L(\d+):(\d+)\}\n")
"""A line of a process that outlives its run: it may land in the log of a later run, but only once."""
NOTICE = re.compile(rb"Terminated(?: +[^\n]*)?\n")
"""What bash says of a program that died of SIGTERM."""
FORMS = ("text", "raw", "events")
STREAMS = ("stdout", "stderr")

_numbers = count(1)


@dataclass(frozen=True)
class Program:
    """A command and what it writes to each stream, `typed` being what was typed into its terminal."""

    command: str
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
    separate: bool = False
    copies_input: bool = False
    restored: bool = False
    leaves: int = 0
    """Lines that a process which it leaves behind writes later."""

    def output(self, stream: str, typed: bytes) -> bytes:
        """Return all that the command writes to `stream` if it is left alone."""
        return self.stdout + (typed if self.copies_input else b"") if stream == "stdout" else self.stderr


def lines(size: int, pause: float, code: int, separate: bool, text: str) -> Program:
    """Numbered lines, at some pace."""
    number = next(_numbers)
    wait = f"; sleep {pause}" if pause else ""
    both = f"; echo 'e{number} '$i >&2" if separate else ""
    return Program(
        f"for ((i = 0; i < {size}; i++)); do echo 'o{number} {text} '$i{both}{wait}; done; (exit {code})",
        stdout="".join(f"o{number} {text} {i}\n" for i in range(size)).encode(),
        stderr="".join(f"e{number} {i}\n" for i in range(size)).encode() if separate else b"",
        exit_code=code,
        separate=separate,
    )


def redrawn(size: int, pause: float) -> Program:
    """A line that grows and redraws itself, without an end."""
    number = next(_numbers)
    steps = "".join(f"\r{i:02d} of {number}" for i in range(size))
    wait = f"; sleep {pause}" if pause else ""
    return Program(
        f"for ((i = 0; i < {size}; i++)); do printf '\\r%02d of {number}' $i{wait}; done", stdout=steps.encode()
    )


def copier(prompt: str) -> Program:
    """A prompt without a line feed, and then what is typed."""
    return Program(f"printf '%s' '{prompt}'; cat", stdout=prompt.encode(), copies_input=True)


def leaver(code: int) -> Program:
    """Calls exit, which restores the shell."""
    number = next(_numbers)
    return Program(f"echo x{number}; exit {code}", f"x{number}\n".encode(), exit_code=code, restored=True)


def lingerer(size: int) -> Program:
    """Leaves a process behind that writes later, into whatever run is going on by then."""
    number = next(_numbers)
    loop = f"for ((i = 0; i < {size}; i++)); do sleep 0.02; printf '{{L{number}:%d}}\\n' $i; done"
    return Program(f"( {{ {loop}; }} & echo n{number} )", f"n{number}\n".encode(), leaves=size)


@dataclass
class Read:
    """What a reader has put together from its reads so far, and where it goes on."""

    text: str = ""
    cursor: int = 0


@dataclass
class Run:
    """The model of a run."""

    run_id: str
    program: Program
    fields: dict[str, Any]
    typed: bytes = b""
    closed: bool = False
    """Whether its input has been ended."""
    broken_off: bool = False
    """Whether somebody has tried to end it."""
    recycled: bool = False
    reads: dict[tuple[str, str], Read] = field(default_factory=dict)

    @property
    def endless(self) -> bool:
        """Whether it certainly goes on until somebody does something."""
        return self.program.copies_input and not self.closed and not self.broken_off


@dataclass
class Model:
    """The model of a shell: its runs, the present or last one at the end."""

    path: str
    session_id: str
    runs: list[Run] = field(default_factory=list)
    cut: set[bytes] = field(default_factory=set)
    """The numbers of left-over writers that may have been killed."""


class World:
    """A daemon with some shells, and the model of them."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        daemon.fresh()
        ids = [daemon.json("POST", "/sessions")["session_id"] for _ in range(SHELLS - 1)]
        self.models = [Model("", "main"), *(Model(f"/sessions/{name}", name) for name in ids)]

    def request(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Send a request; return status and JSON."""
        answer = self.daemon.client.request(method, path, headers={"Accept": "application/json"}, **options)
        return answer.status_code, answer.json()

    def break_off(self, method: str, path: str, body: Any = None) -> None:
        """Send a whole request and go away without waiting for the answer."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-Shell-Key: {KEY}\r\nAccept: application/json\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        with socket.create_connection((urlsplit(self.daemon.url).hostname, urlsplit(self.daemon.url).port)) as client:
            client.sendall(head.encode() + content)

    # --- what clients do ------------------------------------------------------------------------------

    def start(self, model: Model, program: Program, timeout: float, gone: bool) -> None:
        """Start a command; a client that is `gone` asks again later, with the same id."""
        run_id = f"run-{next(_numbers)}"
        fields = {
            "command": program.command, "run_id": run_id, "timeout": timeout,
            "streams": "separate" if program.separate else "merged",
        }  # fmt: skip
        last = model.runs[-1] if model.runs else None
        busy = bool(last and self.result(last)["status"] == "running")
        if gone and not busy:
            self.break_off("POST", f"{model.path}/run", {**fields, "timeout": 20})
        status, answer = self.request("POST", f"{model.path}/run", json=fields)
        if status == 409:
            refusal = TABLE[State.BUSY][Event.RUN]
            assert not isinstance(refusal, State)
            assert answer["code"] == refusal.code
            assert busy
            assert self.daemon.client.get(f"/runs/{run_id}").status_code == 404
            return
        assert status in (200, 202), answer
        assert not (last and last.endless), "two commands at once in one shell"
        assert answer["run_id"] == run_id
        model.runs.append(Run(run_id, program, fields))

    def again(self, model: Model) -> None:
        """Ask for the last run once more: it is joined."""
        run = model.runs[-1]
        status, answer = self.request("POST", f"{model.path}/run", json={**run.fields, "timeout": 0.01})
        assert status in (200, 202), answer
        assert answer["run_id"] == run.run_id

    def read(self, run: Run, stream: str, form: str, limit: int, wait: float, gone: bool) -> None:
        """Read on from where this kind of reader has got to."""
        reader = run.reads.setdefault((stream, form), Read())
        if form == "events":
            self.read_events(run, stream, reader, 1 + limit % 3)
            return
        query = f"cursor={reader.cursor}&stream={stream}&format={form}&limit={limit}&wait={wait}"
        if gone:
            self.break_off("GET", f"/runs/{run.run_id}/output?{query}&wait=1")
        status, part = self.request("GET", f"/runs/{run.run_id}/output?{query}")
        assert (status, part["cursor"], part["dropped"]) == (200, reader.cursor, 0), part
        assert part["next_cursor"] >= reader.cursor
        reader.text += part["output"]
        reader.cursor = part["next_cursor"]

    def read_events(self, run: Run, stream: str, reader: Read, most: int) -> bool:
        """Take some events from the last one on, and break the connection off. Return whether the end has come."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(reader.cursor)}
        query = f"stream={stream}&format=raw"
        name = ""
        with self.daemon.client.stream("GET", f"/runs/{run.run_id}/output?{query}", headers=headers) as answer:
            assert answer.status_code == 200
            enough = self.size(run, stream) if self.result(run)["status"] == "running" else None
            if enough is not None and reader.cursor >= enough:
                return False
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                if name == "result":
                    return True
                if line.startswith("data: "):
                    data = json.loads(line[6:])
                    assert name == "output", line
                    reader.text += data["text"]
                    reader.cursor = data["cursor"]
                    most -= 1
                    if most <= 0 or (enough is not None and reader.cursor >= enough):
                        break
        return False

    def size(self, run: Run, stream: str) -> int:
        """Return the bytes of a stream so far."""
        _, part = self.request("GET", f"/runs/{run.run_id}/output?cursor=0&limit=10000000&format=raw&stream={stream}")
        return part["next_cursor"]

    def wait(self, run: Run, timeout: float, until: str | None) -> None:
        """Wait for the end, or for a condition."""
        query = {"timeout": timeout, **({"until": until} if until else {})}
        status, answer = self.request("GET", f"/runs/{run.run_id}/wait", params=query)
        assert status == (202 if answer["status"] == "running" else 200)
        if run.endless:
            assert status == 202
        if until and answer["reached"] is None:
            assert until != "exit" or status == 202

    def type(self, model: Model, text: str, repeat: bool, eof: bool) -> None:
        """Type into the last run; a client that was cut off says all that it has ever said again."""
        run = model.runs[-1]
        new = text.encode()
        body = {"text": text, "eof": eof}
        if repeat:
            body = {"text": (run.typed + new).decode(), "offset": 0, "eof": eof}
            self.break_off("POST", f"/runs/{run.run_id}/stdin", {**body, "eof": False})
        status, answer = self.request("POST", f"/runs/{run.run_id}/stdin", json=body)
        if run.endless:
            assert status == 200, answer
        if status == 200:
            run.typed += new
            assert answer["accepted"] == len(run.typed)
            run.closed = run.closed or eof
        else:
            assert (status, answer["code"]) == (409, "no_running_command")

    def kill(self, model: Model, signal: str | None) -> None:
        """Kill what runs, or send it a signal."""
        run = model.runs[-1] if model.runs else None
        if run:
            run.broken_off = True
        status, answer = self.request("POST", f"{model.path}/kill" + (f"?signal={signal}" if signal else ""))
        assert status == 200
        if not answer["killed"]:
            assert answer["state"] == "ready"
        elif not signal:
            assert answer["state"] == "ready"
            assert run
            assert self.result(run)["status"] != "running"

    def recycle(self, model: Model) -> None:
        """Give the shell a fresh bash."""
        for run in model.runs:
            model.cut.update(match[1] for match in LEFTOVER.finditer(_left_by(run)))
        if model.runs:
            last = model.runs[-1]
            last.recycled = last.broken_off = True
        assert self.request("POST", f"{model.path}/recycle") == (200, {"state": "ready"})

    def result(self, run: Run) -> dict[str, Any]:
        """Return the result of a run as it stands."""
        status, answer = self.request("GET", f"/runs/{run.run_id}")
        assert status == 200, answer
        return answer

    # --- what must be true ----------------------------------------------------------------------------

    def check_states(self) -> None:
        """Each shell is busy while its last run is going on, and ready otherwise."""
        for model in self.models:
            status = self.request("GET", f"/sessions/{model.session_id}/status")[1]
            last = model.runs[-1] if model.runs else None
            if last and last.endless:
                assert status["state"] == "busy"
            assert status["state"] in ("ready", "busy"), status
            assert (status["run"] is not None) == (status["state"] == "busy")
            if status["run"]:
                assert last
                assert status["run"]["run_id"] == last.run_id
            elif last:
                assert status["last_run_id"] == last.run_id
                assert self.result(last)["status"] != "running"

    def finish(self) -> None:
        """Let all commands end, and compare everything with the model."""
        for model in self.models:
            for run in model.runs:
                if run.endless:
                    self.type(model, "", repeat=False, eof=True)
                assert self.daemon.finished(run.run_id)["status"] != "running"
            self.check_states()
            pids = [pid for run in model.runs for pid in self.result(run)["background_pids"]]
            wait_for(lambda pids=pids: not any(alive(pid) for pid in pids))
            # What they wrote last may still be on its way: at the end of the next run it has arrived.
            self.start(model, Program("true"), 20, gone=False)
            for run in model.runs:
                self.check_run(run)
            self.check_leftovers(model)
        for model in self.models[1:]:
            assert self.daemon.client.delete(model.path).status_code == 200

    def check_run(self, run: Run) -> None:
        """Compare a run with what its command writes, and all reads with the whole."""
        result = self.request("GET", f"/runs/{run.run_id}?max_output=0")[1]
        for stream in STREAMS:
            url = f"/runs/{run.run_id}/output?stream={stream}"
            raw = self.daemon.client.get(f"{url}&format=raw", headers={"Accept": "text/plain"}).content
            text = self.daemon.client.get(url, headers={"Accept": "text/plain"}).text
            assert text == result[stream]
            assert len(text) == result[f"original_{stream}_size"]
            file = self.daemon.data / "runs" / run.run_id / ("output.log" if stream == "stdout" else "stderr.log")
            assert not file.exists() or file.read_bytes() == raw  # what is short lies in the journal
            for form in FORMS:
                while not self.drained(run, stream, form):
                    pass
                reader = run.reads[stream, form]
                assert reader.text == (text if form == "text" else raw.decode()), (run, stream, form)
                assert reader.cursor == len(raw)
            own = LEFTOVER.sub(b"", raw)
            if run.broken_off:
                own = NOTICE.sub(b"", own)
            whole = run.program.output(stream, run.typed)
            if run.broken_off and result["status"] == "killed":
                # An interactive bash that is interrupted begins a new line.
                assert whole.startswith(own.removesuffix(b"\n")), (run, own)
            else:
                assert own == whole, (run, own)
        self.check_ending(run, result)

    def drained(self, run: Run, stream: str, form: str) -> bool:
        """Read on; return whether the end was reached."""
        reader = run.reads.setdefault((stream, form), Read())
        if form == "events":
            return self.read_events(run, stream, reader, 100)
        before = reader.cursor
        self.read(run, stream, form, 100_000, 0, gone=False)
        return reader.cursor == before

    def check_ending(self, run: Run, result: dict[str, Any]) -> None:
        """Compare how a run ended with what was done to it."""
        if not run.broken_off:
            assert (result["status"], result["cause"], result["exit_code"]) == (
                "completed",
                "exit",
                run.program.exit_code,
            )
            assert result["restored"] is run.program.restored
        elif result["status"] == "killed":
            assert result["cause"] in (("killed", "recycled") if run.recycled else ("killed",)), result
        else:
            assert (result["status"], result["exit_code"]) == ("completed", run.program.exit_code), result

    def check_leftovers(self, model: Model) -> None:
        """Each line that a process wrote after its run is in one log of its shell, once, and in order."""
        text = {"Accept": "text/plain"}
        paths = [f"/runs/{run.run_id}/output?format=raw" for run in model.runs]
        logs = [self.daemon.client.get(path, headers=text).content for path in paths]
        own = self.daemon.data / f"{model.session_id}.log"
        everything = b"".join([*logs, own.read_bytes() if own.exists() else b""])
        for run in model.runs:
            expected = LEFTOVER.findall(_left_by(run))
            if not expected or (run.broken_off and self.result(run)["status"] == "killed"):
                continue
            number = expected[0][0]
            found = sorted(int(line) for writer, line in LEFTOVER.findall(everything) if writer == number)
            wanted = [int(line) for _, line in expected]
            assert found == wanted or (number in model.cut and found == wanted[: len(found)]), (run, found)


def _left_by(run: Run) -> bytes:
    """Return the lines that the process which a run leaves behind writes."""
    number = run.program.stdout[1:].strip()
    return b"".join(b"{L%s:%d}\n" % (number, line) for line in range(run.program.leaves))


# --- operations as data -------------------------------------------------------------------------------------

PAUSES = st.sampled_from([0, 0, 0.003, 0.02])
CODES = st.sampled_from([0, 0, 1, 7, 137, 255])
TYPED = st.text(alphabet="ab é世", max_size=8).flatmap(
    lambda text: st.sampled_from([text, text + "\n", text + "\nx\n"])
)
TIMEOUTS = st.sampled_from([0, 0, 0.01, 0.05, 0.2])
PROGRAMS = st.one_of(
    st.tuples(st.just(lines), st.integers(0, 12), PAUSES, CODES, st.booleans(), st.sampled_from(["a", "zwölf 世界"])),
    st.tuples(st.just(lines), st.integers(500, 3000), st.just(0), CODES, st.booleans(), st.just("many")),
    st.tuples(st.just(redrawn), st.integers(1, 12), PAUSES),
    st.tuples(st.just(redrawn), st.integers(5, 12), st.just(0.02)),
    st.tuples(
        st.just(copier), st.sampled_from(["", "Name? ", "first\\nsecond: ", "ü> "]).map(lambda p: p.replace("\\n", " "))
    ),
    st.tuples(st.just(copier), st.just("> ")),
    st.tuples(st.just(leaver), CODES),
    st.tuples(st.just(lingerer), st.integers(1, 5)),
)
SHELL = st.integers(0, SHELLS - 1)
READ = st.tuples(
    st.sampled_from(["stdout", "stdout", "stderr"]), st.sampled_from(["text", *FORMS]),
    st.sampled_from([1, 2, 3, 10, 64, 1000, 100_000]), st.sampled_from([0, 0.02, 0.05]), st.booleans(),
)  # fmt: skip
READS = st.lists(READ, max_size=4)
OPERATIONS = st.one_of(
    st.tuples(st.just("start"), SHELL, PROGRAMS, TIMEOUTS, st.booleans(), READS),
    st.tuples(st.just("start"), SHELL, PROGRAMS, TIMEOUTS, st.booleans(), READS),
    st.tuples(st.just("read"), SHELL, st.integers(0, 2), READS),
    st.tuples(st.just("read"), SHELL, st.integers(0, 2), READS),
    st.tuples(st.just("type"), SHELL, TYPED, st.booleans(), st.sampled_from([False, False, True])),
    st.tuples(st.just("type"), SHELL, TYPED, st.booleans(), st.just(False)),
    st.tuples(st.just("wait"), SHELL, st.integers(0, 2), TIMEOUTS, st.sampled_from([
        None, "exit", "input", "quiet:30ms", "output:[0-9]$", "port:9",
    ])),
    st.tuples(st.just("kill"), SHELL, st.sampled_from([None, "INT", "TERM"])),
    st.tuples(st.just("again"), SHELL),
    st.tuples(st.just("recycle"), SHELL),
)  # fmt: skip


def do(world: World, operation: tuple[Any, ...]) -> None:
    """Do one operation; what needs a run does nothing where there is none yet."""
    name, shell, *arguments = operation
    model = world.models[shell]
    if name == "start":
        (make, *values), timeout, gone, reads = arguments
        world.start(model, make(*values), timeout, gone)
        for read in reads:
            world.read(model.runs[-1], *read)
    elif name == "kill":
        world.kill(model, *arguments)
    elif name == "recycle":
        world.recycle(model)
    elif not model.runs:
        return
    elif name == "type":
        world.type(model, *arguments)
    elif name == "again":
        world.again(model)
    elif name == "read":
        back, reads = arguments
        for read in reads:
            world.read(model.runs[-1 - back % len(model.runs)], *read)
    else:
        back, *values = arguments
        world.wait(model.runs[-1 - back % len(model.runs)], *values)


@pytest.fixture(scope="module")
def busy_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon for this file alone, on a file system in memory where there is one."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=parent) as directory,
        running_daemon(Path(directory), output__retain_runs="100000") as daemon,
    ):
        yield daemon
        assert not re.search(r" (warning (?!running as root)|error )|Traceback", daemon.log.read_text()), (
            daemon.log.read_text()
        )


@settings(
    max_examples=400 if LONG else 6,
    derandomize=not LONG,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink] if LONG else [Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
@given(operations=st.lists(OPERATIONS, min_size=10, max_size=60 if LONG else 30))
def test_nothing_is_lost_or_doubled_whatever_clients_do(
    busy_daemon: RunningDaemon, operations: list[tuple[Any, ...]]
) -> None:
    """See the head of this file."""
    world = World(busy_daemon)
    for operation in operations:
        do(world, operation)
        world.check_states()
    world.finish()
