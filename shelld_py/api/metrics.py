"""Metrics for Prometheus, on an address of their own: what runs and requests came to, and how things are just now.

What ends is counted as it ends; all else is looked at when somebody asks, so an idle daemon does nothing for it. Needs
no key, as scrapers have none: nothing here tells what was run, or by whom.
"""

import asyncio
import os
import resource
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from shelld_py.computer import Computer
from shelld_py.config import Settings
from shelld_py.errors import ShelldError
from shelld_py.http.admission import Sites
from shelld_py.http.answers import problem_response
from shelld_py.http.endpoint import Endpoint
from shelld_py.linux.processes import process_stat, tree_usage
from shelld_py.models import ShellState
from shelld_py.shells.live_run import LiveRun
from shelld_py.version import __version__

_SECONDS: Final = (0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800)
"""Bounds of durations: from a quick command to `timeout.command_maximum`."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


class _Now(Struct, frozen=True):
    """What the event loop knows at the moment of a scrape."""

    states: Tally[ShellState]
    pids: tuple[int, ...]
    waiting: int


class Metrics:
    """Counts, and answers scrapers: an ASGI application of its own."""

    def __init__(self, computer: Computer, settings: Settings, waiting: Callable[[], int]) -> None:
        """`waiting` tells how many requests are being served."""
        self._computer = computer
        self._waiting = waiting
        site = replace(settings.server, host=settings.metrics.host, hosts=(), origins=())
        self._check_site = Sites(site).check
        self._scraping = asyncio.Lock()
        self._registry = registry = CollectorRegistry(auto_describe=True)
        self._runs = Counter("shelld_runs", "Runs that have ended.", ["status", "cause"], registry=registry)
        self._run_seconds = Histogram(
            "shelld_run_duration_seconds", "How long they took.", buckets=_SECONDS, registry=registry
        )
        self._output = Counter("shelld_run_output_bytes", "What they wrote.", registry=registry)
        self._requests = Histogram(
            "shelld_request_duration_seconds",
            "Requests, from the head to the end of the answer.",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=registry,
        )

    def run_ended(self, run: LiveRun) -> None:
        """Count a run."""
        ending = run.ending
        if ending:
            self._runs.labels(ending.status.value, ending.cause.value).inc()
            self._run_seconds.observe(run.duration)
            self._output.inc(run.written)

    def request_ended(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request. Its route is that of the declaration: names in a path would make a series each."""
        endpoint = scope.get("endpoint")
        owner = getattr(endpoint.func, "__self__", None) if isinstance(endpoint, partial) else None
        route = owner.path if isinstance(owner, Endpoint) else scope.get("route", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, route, str(status)).observe(seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a scraper."""
        response: Response
        try:
            self._check_site(scope)
        except ShelldError as error:
            response = problem_response(error, as_text=True)
        else:
            if scope["path"] != "/metrics":
                response = PlainTextResponse("There is /metrics here, and nothing else.\n", 404)
            elif scope["method"] not in ("GET", "HEAD"):
                response = PlainTextResponse("/metrics takes GET and HEAD.\n", 405, {"Allow": "GET, HEAD"})
            else:
                response = Response(await self._scraped(), media_type=CONTENT_TYPE_LATEST)
        await response(scope, receive, send)

    async def _scraped(self) -> bytes:
        async with self._scraping:
            shells = self._computer.shells.all
            pids = tuple(pid for shell in shells if (pid := shell.pid))
            now = _Now(Tally(shell.state for shell in shells), pids, self._waiting())
            return await asyncio.to_thread(self._text, now)

    def _text(self, now: _Now) -> bytes:
        """Return the text of all metrics. In a thread: it looks at each process of the shells."""
        looked_at = CollectorRegistry()
        looked_at.register(_Collected(list(self._gauges(now))))
        return generate_latest(self._registry) + generate_latest(looked_at)

    def _gauges(self, now: _Now) -> Iterable[Metric]:
        states = GaugeMetricFamily("shelld_shells", "Shells by state.", labels=["state"])
        for state in ShellState:
            states.add_metric([state.value], now.states[state])
        yield states
        yield GaugeMetricFamily("shelld_requests_waiting", "Requests that are being served.", now.waiting)
        usages = [tree_usage(pid) for pid in now.pids]
        memory, processes = sum(use.memory for use in usages), sum(use.processes for use in usages)
        yield GaugeMetricFamily("shelld_shells_memory_bytes", "Resident memory of shells and all below them.", memory)
        yield GaugeMetricFamily("shelld_shells_processes", "Processes of shells and all below them.", processes)
        # What has ended and been waited for is in the sum of the daemon's children: together they never fall.
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = ended.ru_utime + ended.ru_stime + sum(use.cpu_seconds for use in usages)
        yield CounterMetricFamily("shelld_shells_cpu_seconds", "CPU time of shells, hooks and all below them.", spent)
        own = process_stat(os.getpid())
        yield GaugeMetricFamily(
            "shelld_daemon_memory_bytes", "Resident memory of the daemon.", own.memory if own else 0
        )
        yield CounterMetricFamily("shelld_daemon_cpu_seconds", "CPU time of the daemon.", time.process_time())
        yield GaugeMetricFamily("shelld_uptime_seconds", "Seconds since the daemon began.", self._computer.uptime)
        about = GaugeMetricFamily("shelld_info", "The daemon.", labels=["version"])
        about.add_metric([__version__], 1)
        yield about


class _Collected(Collector):
    """What was looked at for one scrape, as prometheus_client wants it."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._metrics
