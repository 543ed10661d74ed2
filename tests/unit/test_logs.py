"""Logging: text and JSON lines, levels, request ids, rotation."""

import asyncio
import json
import logging
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shelld_py.config import LogFormat, LoggingSettings, LogLevel
from shelld_py.logs import LOGGER_NAME, set_up_logging

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Close the handlers that a test has set up, and give the loggers back what they had."""
    names = (LOGGER_NAME, "uvicorn", "asyncio")
    before = {name: (log.handlers[:], log.level, log.propagate) for name in names if (log := logging.getLogger(name))}
    switches = (logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile)
    yield
    for handler in logging.getLogger(LOGGER_NAME).handlers:
        handler.close()
    for name, (handlers, level, propagate) in before.items():
        log = logging.getLogger(name)
        log.handlers[:], log.propagate = handlers, propagate
        log.setLevel(level)
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile = switches


def logger_to(directory: Path, **settings: object) -> logging.Logger:
    """Return a logger that writes to the file `log` in `directory`."""
    return set_up_logging(LoggingSettings(file=str(directory / "log"), **settings))  # type: ignore[arg-type]


def lines(directory: Path) -> list[str]:
    """Return the lines of the log."""
    return (directory / "log").read_text().splitlines()


def test_a_line_of_text(tmp_path: Path) -> None:
    """Time, level, request, message."""
    logger = logger_to(tmp_path)
    logger.info("run %s: %d", "r1", 5)
    logger.error("broken", extra={"request_id": "abc"})
    first, second = lines(tmp_path)
    assert re.fullmatch(f"{TIME} info run r1: 5", first)
    assert re.fullmatch(f"{TIME} error \\[abc\\] broken", second)


def test_a_line_of_json(tmp_path: Path) -> None:
    """Each line is an object with time, level, message and, where there is one, the request's id."""
    logger = logger_to(tmp_path, format=LogFormat.JSON)
    logger.info('two\nlines and "quotes" ä \udcff')
    logger.warning("w", extra={"request_id": "abc"})
    first, second = (json.loads(line) for line in lines(tmp_path))
    assert first == {"time": first["time"], "level": "info", "message": 'two\nlines and "quotes" ä \udcff'}
    assert re.fullmatch(TIME, first["time"])
    assert second == {"time": second["time"], "level": "warning", "message": "w", "request_id": "abc"}


@pytest.mark.parametrize("form", LogFormat)
def test_an_exception(tmp_path: Path, form: LogFormat) -> None:
    """The traceback is logged; in JSON it is part of the one line."""
    logger = logger_to(tmp_path, format=form)
    try:
        raise ValueError("what was wrong")
    except ValueError:
        logger.exception("a fault")
    text = (tmp_path / "log").read_text()
    assert "a fault" in text
    assert "ValueError: what was wrong" in text
    assert "Traceback" in text
    if form is LogFormat.JSON:
        (line,) = lines(tmp_path)
        assert "Traceback" in json.loads(line)["exception"]


def test_a_message_that_is_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path with bytes that are no text is logged all the same."""
    logger = logger_to(tmp_path)
    logger.info("removing %s", "/tmp/\udcff")
    assert "removing /tmp/" in (tmp_path / "log").read_text(errors="replace")
    assert "Logging error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (LogLevel.DEBUG, ["debug", "info", "warning", "error"]),
        (LogLevel.INFO, ["info", "warning", "error"]),
        (LogLevel.WARNING, ["warning", "error"]),
        (LogLevel.ERROR, ["error"]),
    ],
)
def test_levels(tmp_path: Path, level: LogLevel, expected: list[str]) -> None:
    """Less serious messages than the level are not logged."""
    logger = logger_to(tmp_path, level=level)
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)("message")
    assert [line.split()[1] for line in lines(tmp_path)] == expected


def test_rotation(tmp_path: Path) -> None:
    """No file is larger than `max_size`, there are `backup_count` old ones, and the newest lines are in order."""
    logger = logger_to(tmp_path, max_size=400, backup_count=2)
    for number in range(50):
        logger.info("message %d", number)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["log", "log.1", "log.2"]
    assert all((tmp_path / name).stat().st_size <= 400 for name in files)
    text = "".join((tmp_path / name).read_text() for name in ("log.2", "log.1", "log"))
    numbers = [int(line.split()[-1]) for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 50))
    assert len(numbers) > 10


def test_a_log_that_is_there_is_continued(tmp_path: Path) -> None:
    """A restart does not lose what was logged before."""
    (tmp_path / "log").write_text("before\n")
    logger_to(tmp_path).info("after")
    assert [line.split()[-1] for line in lines(tmp_path)] == ["before", "after"]


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """The caller hears of it."""
    with pytest.raises(FileNotFoundError):
        set_up_logging(LoggingSettings(file=str(tmp_path / "none/log")))


def test_libraries_write_to_the_same_log(tmp_path: Path) -> None:
    """Warnings of the server and of the event loop are in it, their chatter is not."""
    logger_to(tmp_path)
    logging.getLogger("uvicorn.error").info("chatter")
    logging.getLogger("uvicorn.error").warning("of the server")
    logging.getLogger("asyncio").error("of the loop")
    assert [line.split(maxsplit=2)[2] for line in lines(tmp_path)] == ["of the server", "of the loop"]


STDERR = """
import asyncio, sys
from shelld_py.config import LogFormat, LoggingSettings
from shelld_py.logs import set_up_logging
logger = set_up_logging(LoggingSettings(format=LogFormat.JSON))
logger.info("before the loop")
async def main():
    for number in range(3):
        logger.info("in one turn %d", number)
    await asyncio.sleep(0.01)
    logger.info("in another")
    logger.info("the last words of the loop")
asyncio.run(main())
logger.info("after the loop")
"""


def test_standard_error() -> None:
    """Without a file the log is there: all lines, whole and in order, also those around the event loop's end."""
    done = subprocess.run([sys.executable, "-c", STDERR], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == [
        "before the loop",
        *(f"in one turn {number}" for number in range(3)),
        "in another",
        "the last words of the loop",
        "after the loop",
    ]


def test_a_line_is_written_when_it_is_logged(tmp_path: Path) -> None:
    """What is in a file survives a crash: nothing is held back, in a loop or without one."""
    logger = logger_to(tmp_path)

    async def test() -> None:
        logger.info("in the loop")
        assert lines(tmp_path)[-1].endswith("in the loop")

    logger.info("without a loop")
    assert lines(tmp_path)[-1].endswith("without a loop")
    asyncio.run(test())


HUNG = """
import asyncio, os, threading, time
from shelld_py.config import LoggingSettings
from shelld_py.logs import set_up_logging
logger = set_up_logging(LoggingSettings())
def last_words():
    logger.error("said while the loop hangs")
    for handler in logger.handlers:
        handler.flush()
async def main():
    logger.info("said in a turn that never ends")
    speaker = threading.Thread(target=last_words)
    speaker.start()
    speaker.join()
    os._exit(0)
asyncio.run(main())
"""


def test_a_flush_writes_what_the_event_loop_has_not() -> None:
    """Whoever ends the process while the loop hangs can have every line written before."""
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, check=True)
    assert [line.partition("said ")[2] for line in done.stderr.splitlines()] == [
        "in a turn that never ends",
        "while the loop hangs",
    ]


STUCK = """
import asyncio
from shelld_py.config import LoggingSettings
from shelld_py.logs import set_up_logging
logger = set_up_logging(LoggingSettings())
async def main():
    for number in range(2_000):
        logger.info("%d %s", number, "x" * 1000)
        await asyncio.sleep(0)
    print("it goes on", flush=True)
    await asyncio.to_thread(input)
    logger.info("in time")
asyncio.run(main())
"""


def test_standard_error_that_nobody_reads() -> None:
    """Nobody is held up: a bounded number of lines waits, and the log tells how many are lost."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "it goes on\n"
    _, err = process.communicate("\n", 60)
    read = [line.split()[2] for line in err.splitlines() if line.endswith("xx")]
    assert read == [str(number) for number in range(len(read))]
    lost, last = (line.split(maxsplit=2)[2] for line in err.splitlines()[len(read) :])
    assert len(read) > 1_000
    assert lost == f"log: {2_000 - len(read)} lines before this one are lost"
    assert last == "in time"


def test_a_terminal_that_nobody_reads() -> None:
    """Nobody is held up by that, either, and what it takes later is whole lines in order."""
    master, slave = os.openpty()
    command = [sys.executable, "-c", STUCK]
    with (
        open(master, "rb", buffering=0) as terminal,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=slave) as process,
    ):
        os.close(slave)
        assert process.stdout
        goes_on = select.select([process.stdout], [], [], 30)[0] != []
        first = os.read(terminal.fileno(), 4096).splitlines()
        process.kill()
    assert goes_on
    assert [line.split()[2] for line in first] == [b"%d" % number for number in range(len(first))]


FULL = """
import resource, sys
from shelld_py.config import LoggingSettings
from shelld_py.logs import set_up_logging
logger = set_up_logging(LoggingSettings(file=sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
for _ in range(5):
    logger.info("lost")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
logger.info("kept")
"""


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Standard error says so once, whatever is logged, and the file how many lines are lost."""
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True)
    (told,) = done.stderr.splitlines()
    assert told.split(maxsplit=1)[1] == f"error log: {path} cannot be written, lines are lost: File too large"
    assert "log: 5 lines before this one are lost" in path.read_text()
    assert "info kept" in path.read_text()
