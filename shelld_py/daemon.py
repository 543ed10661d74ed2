"""The daemon: what lives as long as the process. It wires everything together and nothing else does.

Order of the end, which every way there takes (a request, a signal, the idle timer): no new request is
admitted; all shells end, so that waiting requests are answered; the last hook runs; the server closes;
the data directory is given free; the process exits, whatever its threads do. After `timeout.shutdown`
it exits all the same.
"""

import _thread
import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import uvloop
from msgspec.structs import replace

from shelld_py.api import console
from shelld_py.api.app import Application
from shelld_py.audit import Audit
from shelld_py.computer import Computer, Surroundings
from shelld_py.config import Settings
from shelld_py.errors import ConfigError
from shelld_py.http.keylock import KeyLock
from shelld_py.http.listener import LAST_ANSWERS, Capacity, Server, address_of, listen
from shelld_py.idle import IdleTimer
from shelld_py.imports import OF_FILES, execute
from shelld_py.linux import held_port, oom
from shelld_py.linux.descriptors import raise_limit
from shelld_py.linux.held_port import HeldPort
from shelld_py.linux.processes import still_alive
from shelld_py.linux.removal import remove_tree
from shelld_py.linux.syscalls import be_subreaper, return_large_blocks
from shelld_py.linux.threads import ThreadPool
from shelld_py.linux.users import User, missing_capabilities
from shelld_py.loading import Configuration, inheritable_environment
from shelld_py.logs import set_up_logging
from shelld_py.shells.data_directory import claim
from shelld_py.units import format_duration
from shelld_py.version import __version__

_SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread that renders lets the event loop go on. With Python's 5 ms a request that comes
meanwhile would wait so long at each of its system calls."""
_SCRAPERS: Final = 8
"""Connections for metrics at a time: a scraper or two, and somebody who looks."""
_END_GRACE: Final = 0.5
"""Seconds that dying processes and a log that may not take a line any more get at the very end."""
_RETRY_AFTER: Final = 0.1
"""Seconds after which a thread is asked for again that could not be started."""
_ENDING_SIGNALS: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGIO, signal.SIGPWR, signal.SIGSTKFLT, signal.SIGXCPU, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)),
)
"""All that would end the process, can be caught, and tell of no fault of its own."""
_IDLE_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""Their default action would end the process and leave all behind."""
_LEAST_DESCRIPTORS: Final = 256
"""What a bash must be allowed to open: the descriptors of its driver end at 249."""
_NOT_PRIVATE: Final = ("server.data_directory", "shell.command")
"""The first is made private when it is claimed."""
_ENDING: Final = "The daemon is shutting down."


def serve(configuration: Configuration, environ: Mapping[str, str]) -> int:
    """Serve until the end; return the exit status. Raises `ConfigError`."""
    if configuration.settings.server.socketio:
        try:
            import_module("socketio")
        except ImportError as error:
            hint = "pip install '.[socketio]' in shelld-py's checkout"
            raise ConfigError(f"server.socketio: python-socketio cannot be imported ({error}): {hint}") from None
    user = _shell_user(configuration.settings)
    if user:
        _check_out_of_reach(user, configuration.settings)
        execute(OF_FILES)  # a thread with that user's rights can import nothing from where they may not read
    try:
        logger = set_up_logging(configuration.settings.logging, private=user is not None)
    except OSError as error:
        raise ConfigError(f"logging.file: {configuration.settings.logging.file}: {error.strerror}") from None
    # The runner would put a handler of its own there, and when that gives way, Python describes it: by `inspect`.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(configuration, environ, logger, user))
    return 0


async def _serve(
    configuration: Configuration, environ: Mapping[str, str], logger: logging.Logger, user: User | None
) -> None:
    await Daemon(configuration, environ, logger, user).serve()


class Daemon:
    """One daemon from its start to its end: `await Daemon(...).serve()`."""

    def __init__(
        self, configuration: Configuration, environ: Mapping[str, str], logger: logging.Logger, user: User | None
    ) -> None:
        """Make it, in a running event loop; its shells run as `user`, None for its own.

        It heeds signals from here on, for it makes what has to be removed.
        """
        settings = configuration.settings
        self._configuration = configuration
        self._settings = settings
        self._logger = logger
        self._has_key = configuration.key is not None
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPool(thread_name_prefix="asyncio"))
        self._stop_reason: asyncio.Future[str] = self._loop.create_future()
        self._watchdog_started = False
        self._overdue_at = 0.0
        """When (monotonic) the end is given up; 0 before it has begun."""
        working_directory = _working_directory(settings)
        open_files = _shell_descriptor_limits()
        audit = _opened_audit(settings, logger)
        self._take_signals()
        self._temporary = None if settings.server.data_directory else tempfile.mkdtemp(prefix="shelld-py-")
        surroundings = Surroundings(
            environment=inheritable_environment(environ),
            working_directory=working_directory,
            data_directory=Path(self._temporary)
            if self._temporary
            else claim(Path(settings.server.data_directory).absolute(), logger),
            open_files=open_files,
            oom_score_adj=oom.adjustment(),
            audit=audit,
            user=user,
        )
        self._user = user
        self._data_directory = surroundings.data_directory
        self._computer = Computer(settings, surroundings, logger)
        self._oom_score_adj = surroundings.oom_score_adj
        self._idle = IdleTimer(
            settings.timeout.idle,
            self._idle_too_long,
            on_notice=self._announce_idle_end,
            busy=self._runs_count_and_go_on,
        )
        self._capacity = Capacity(settings.server)
        self._application = Application(
            self._computer,
            KeyLock(configuration.key),
            self._idle,
            self._capacity,
            logger=logger,
            shut_down=lambda: self._stop("a request"),
        )

    async def serve(self) -> NoReturn:
        """Serve until the end, which is that of the process, with exit status 0.

        Raises `ConfigError` when the address or the data directory cannot be had.
        """
        try:
            self._computer.open()
            listener = listen(self._settings.server, "server", taken=self._held_by_last)
            scraped = listen(self._settings.metrics, "metrics") if self._settings.metrics.enabled else None
            browsed = self._listen_for_browsers(listener, scraped)
        except BaseException:
            self._remove_temporary()
            raise
        be_subreaper()
        return_large_blocks()
        oom.lower(self._oom_score_adj)
        self._computer.kernel_limits.take()
        # uvloop keeps SIGCHLD for itself in add_signal_handler; a handler of Python's own does as well.
        signal.signal(signal.SIGCHLD, lambda *_: self._loop.call_soon_threadsafe(self._computer.reaper.reap))
        held = HeldPort(listener, str(self._data_directory)) if self._user and not self._temporary else None
        self._capacity.open()
        server = Server(self._application, self._settings.server, self._capacity)
        serving = self._loop.create_task(server.serve([listener, *browsed]))
        address = address_of(listener)
        self._announce_start(address)
        if scraped:
            self._serve_metrics(scraped)
        for each in browsed:
            self._logger.info("ports of shells at %s/ports/PORT/, by links", address_of(each))
        if self._settings.server.port == 0:
            sys.stdout.write(f"{address}\n")
            sys.stdout.flush()
        self._idle.start()
        gc.freeze()
        gc.enable()  # the start does without it
        sys.setswitchinterval(_SWITCH_INTERVAL)
        status = 1
        try:
            waits: set[asyncio.Future[Any]] = {serving, self._stop_reason}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await self._shut_down(server, serving)
            status = 0
        except Exception:
            self._logger.exception("the daemon ends for a fault of its own")
            self._computer.reaper.kill_all()
        finally:
            for each in (listener, *browsed):
                each.close()
            if held and not status:
                held.release()
            self._remove_temporary()
            # Not by returning: the interpreter waits for its threads, and one may hang in a read for ever.
            if self._computer.audit:
                self._computer.audit.close()
            logging.shutdown()
            os._exit(status)

    def _held_by_last(self, address: tuple[Any, ...]) -> socket.socket | None:
        """Return the socket of the last daemon on this data directory, where that has crashed."""
        if self._temporary:
            return None
        return held_port.taken(str(self._data_directory), address, wait=self._user is not None)

    def _listen_for_browsers(self, *others: socket.socket | None) -> list[socket.socket]:
        """Return the socket where browsers come to see ports of shells, if they may; `others` are there already."""
        proxied, settings = self._application.proxied, self._settings.server
        if not proxied:
            return []
        listener = listen(replace(settings, port=settings.proxy_port), "server", "proxy_port")
        own = frozenset(each.getsockname()[1] for each in (listener, *others) if each)
        proxied.opened(listener.getsockname()[1], own)
        return [listener]

    def _serve_metrics(self, listener: socket.socket) -> None:
        """Answer scrapers, until the process ends: they see the shutdown, too. Nobody waits for them."""
        from shelld_py.api.metrics import Metrics

        metrics = Metrics(self._computer, self._settings, lambda: self._application.admission.waiting)
        self._application.metrics = metrics
        self._computer.on_run_ended.append(metrics.run_ended)
        settings = replace(self._settings.server, socketio=False, max_connections=_SCRAPERS)
        server = Server(metrics, settings, Capacity(settings))
        self._scraping = self._loop.create_task(server.serve([listener]))
        self._logger.info("metrics on %s/metrics", address_of(listener))

    async def _shut_down(self, server: Server, serving: asyncio.Task[None]) -> None:
        self._stop("the server has ended")
        self._idle.stop()
        await self._computer.end()
        # Requests are ended, but the thread of one may hang for ever: nobody's key comes after this, so it may be left.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * LAST_ANSWERS):
                await self._application.aclose()
        server.stop()
        await serving
        self._computer.close()
        self._logger.info("stopped")

    def _announce_start(self, address: str) -> None:
        """Say what somebody who has just started it has to know: to copy on a terminal, else in one line of the log."""
        idle = self._settings.timeout.idle
        end = f"ends after {format_duration(idle)} without a request" if idle else "does not end by itself"
        key = "the key is set" if self._has_key else "no key is set: the first X-Shell-Key becomes it"
        page = f"{address}/console" if self._settings.console.enabled and console.is_built() else ""
        if sys.stderr.isatty():
            shown = '"$SHELLD_KEY"' if self._has_key else "my-secret"
            sys.stderr.write(
                f"shelld-py {__version__} serves on {address}; {key}\n"
                f"it {end} (timeout.idle); Ctrl-C ends it, too\n"
                f"try:  curl {address}/exec -H 'Accept: text/plain' -H X-Shell-Key:{shown} -d 'uname -a'\n"
                + (f"see:  {page}\n" if page else "")
            )
        if self._settings.logging.file or not sys.stderr.isatty():
            self._logger.info("serving on %s (%s; %s)", address, key, end)
            if page:
                self._logger.info("console on %s", page)
        if not self._has_key and not _is_loopback(address):
            self._logger.warning("whoever reaches %s first sets its key; SHELLD_KEY sets it beforehand", address)
        if os.geteuid() == 0 and self._user is None:
            self._logger.warning("running as root: commands can do anything on this machine (shell.user)")
        for warning in self._configuration.warnings:
            self._logger.warning("%s", warning)

    def _take_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever has started the daemon may have blocked some
        for number in _ENDING_SIGNALS:
            # nohup(1) has it ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._end_by_signal)
        for number in _IDLE_SIGNALS:
            signal.signal(number, self._pass_over_signal)

    def _end_by_signal(self, number: int, _frame: FrameType | None) -> None:
        """Runs between any two steps of the main thread, also where the event loop hangs in a system call."""
        self._start_watchdog()
        self._loop.call_soon_threadsafe(self._stop, _name(number))

    def _pass_over_signal(self, number: int, _frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._logger.info, "%s means nothing here", _name(number))

    def _stop(self, reason: str) -> None:
        self._application.admission.close(_ENDING)
        self._start_watchdog()
        if not self._stop_reason.done():
            self._logger.info("shutting down: %s", reason)
            self._stop_reason.set_result(reason)

    def _idle_too_long(self) -> None:
        self._stop(f"no request for {format_duration(self._settings.timeout.idle)} (timeout.idle)")

    def _announce_idle_end(self, left: float) -> None:
        self._logger.warning("ends in %s unless a request comes (timeout.idle)", format_duration(round(left)))

    def _runs_count_and_go_on(self) -> bool:
        return self._settings.timeout.idle_counts_runs and any(shell.run for shell in self._computer.shells.all)

    def _start_watchdog(self) -> None:
        """From now on the process has `timeout.shutdown` to end; nobody calls that off.

        Safe in a signal handler: `threading.Thread.start` takes locks, which the main thread may hold just then.
        """
        self._overdue_at = self._overdue_at or time.monotonic() + self._settings.timeout.shutdown
        if self._watchdog_started:
            return
        try:
            _thread.start_new_thread(self._give_up, ())
            self._watchdog_started = True
        except RuntimeError:  # shells have taken all threads that there may be: they end soon, and give some back
            self._loop.call_soon_threadsafe(self._loop.call_later, _RETRY_AFTER, self._start_watchdog)

    def _give_up(self) -> None:
        """The orderly end takes too long: kill what is left and go. In a thread of its own."""
        time.sleep(max(0.0, self._overdue_at - time.monotonic()))
        try:
            # First, for what is killed next may let the main thread come to its end. In a thread: whoever hangs may do
            # so in the log, and hold its lock.
            speaker = threading.Thread(target=self._log_overdue, daemon=True)
            with contextlib.suppress(RuntimeError):  # shells may have taken all threads: they are killed unsaid
                speaker.start()
                speaker.join(_END_GRACE)
            killed = self._computer.reaper.kill_all()
            deadline = time.monotonic() + _END_GRACE
            while any(map(still_alive, killed)) and time.monotonic() < deadline:
                time.sleep(0.001)
            self._computer.kernel_limits.release()
            self._remove_temporary()
        finally:
            os._exit(0)

    def _log_overdue(self) -> None:
        self._logger.error("not stopped within timeout.shutdown, exiting")
        for handler in self._logger.handlers:  # the event loop, which writes lines out otherwise, may hang
            handler.flush()

    def _remove_temporary(self) -> None:
        if self._temporary:
            remove_tree(self._temporary)


def _shell_descriptor_limits() -> tuple[int, int]:
    """Let this process open as many files as it may; return the limits of shells: those that it had, if they suffice.

    Raises `ConfigError`.
    """
    soft, hard = raise_limit()
    if hard < _LEAST_DESCRIPTORS:
        raise ConfigError(f"ulimit -Hn: {hard} open files are too few: a shell needs at least {_LEAST_DESCRIPTORS}")
    return max(soft, _LEAST_DESCRIPTORS), hard


def _shell_user(settings: Settings) -> User | None:
    """Return whom shells run as, where that is not the daemon's own user. Raises `ConfigError`."""
    if not (name := settings.shell.user):
        return None
    try:
        user = User.find(name)
    except LookupError as error:
        raise ConfigError(f"shell.user: {error}; it must be a name, such as nobody, or uid, or uid:gid") from None
    if os.geteuid() != 0:
        raise ConfigError(
            f"shell.user: only root can run shells as {name}: start the daemon as root, or leave it empty"
        )
    if user.uid == 0:
        raise ConfigError(f"shell.user: {name} is root, from whom nothing is kept apart: name another user")
    if missing := missing_capabilities():
        raise ConfigError(f"shell.user: to run shells as {name} the daemon also needs {', '.join(missing)}")
    try:
        user.can_read("/")
    except OSError as error:
        raise ConfigError(f"shell.user: the kernel refuses to use files as {name}: {error}") from None
    return user


def _check_out_of_reach(user: User, settings: Settings) -> None:
    """Raise `ConfigError` where shells could read what the daemon keeps, or put something else in its place."""
    for name, path in (
        ("server.data_directory", settings.server.data_directory),
        ("server.key_file", settings.server.key_file),
        ("shell.command", shutil.which(shlex.split(settings.shell.command)[0]) or ""),  # it is asked for its version
        ("files.backup_directory", settings.files.backup_directory),
        ("logging.file", settings.logging.file),
        ("logging.audit", settings.logging.audit),
    ):
        if path and (where := user.reach(path)):
            raise ConfigError(
                f"{name}: {settings.shell.user} (shell.user) can write to {where}: it must be out of reach"
            )
        if path and name not in _NOT_PRIVATE and user.can_read(path):
            raise ConfigError(f"{name}: {settings.shell.user} (shell.user) can read {path}: chmod go= {path}")


def _opened_audit(settings: Settings, logger: logging.Logger) -> Audit | None:
    """Return the audit log, if there is to be one. Raises `ConfigError`."""
    if not settings.logging.audit:
        return None
    audit = Audit(settings.logging, logger)
    try:
        audit.open()
    except OSError as error:
        raise ConfigError(f"logging.audit: {settings.logging.audit}: {error.strerror}") from None
    return audit


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(urlsplit(address).hostname or "").is_loopback


def _working_directory(settings: Settings) -> str:
    """Return where shells start. Raises `ConfigError` where the daemon's own directory, the default, is gone."""
    try:
        return str(Path(settings.shell.working_directory).absolute())
    except FileNotFoundError:
        hint = "start the daemon in one that exists"
        raise ConfigError(f"shell.working_directory: the directory of the daemon itself is gone: {hint}") from None


def _name(number: int) -> str:
    above = number - signal.SIGRTMIN
    return f"SIGRTMIN+{above}" if above > 0 else signal.Signals(number).name
