"""Metrics for Prometheus, and what is made of them: a dashboard and alerts that name none that does not exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.daemons import KEY, RunningDaemon, ask, running_daemon, wait_for

prometheus_client = pytest.importorskip("prometheus_client")
CONFIG = Path(__file__).parents[2] / "config"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon that has metrics."""
    options = {"metrics__enabled": "true", "metrics__port": "0"}
    with running_daemon(tmp_path_factory.mktemp("measured"), **options) as daemon:
        daemon.fresh()
        yield daemon


def address(daemon: RunningDaemon) -> str:
    """Return where the metrics are."""
    found = wait_for(lambda: re.search(r"metrics on (http://\S+)/metrics", daemon.log.read_text()))
    return str(found[1])


def scraped(daemon: RunningDaemon) -> Samples:
    """Return the samples by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families as parsed

    answer = httpx.get(f"{address(daemon)}/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parsed(answer.text)
        for sample in family.samples
    }


def sample(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


def test_runs_are_counted_by_how_they_ended(measured: RunningDaemon) -> None:
    """Quick ones and others, with what they wrote."""
    before = scraped(measured)
    measured.run("printf 12345")
    measured.run("sleep 0.05; printf 12345")
    measured.run("sh -c 'kill -9 $$'", streams="separate")
    run_id = measured.start("sleep 4751")
    measured.client.post("/kill")
    measured.finished(run_id)
    after = scraped(measured)

    def grown(name: str, **labels: str) -> float:
        return sample(after, name, **labels) - sample(before, name, **labels)

    assert grown("shelld_runs_total", status="completed", cause="exit") == 2
    assert grown("shelld_runs_total", status="completed", cause="signal") == 1
    assert grown("shelld_runs_total", status="killed", cause="killed") == 1
    assert grown("shelld_run_duration_seconds_count") == 4
    assert grown("shelld_run_output_bytes_total") >= 10


def test_shells_and_daemon_are_looked_at(measured: RunningDaemon) -> None:
    """Shells by state, what they use, and what the daemon uses itself."""
    run_id = measured.start("x=0; while [ $x -lt 20000 ]; do x=$((x + 1)); done; sleep 4752")
    session = measured.json("POST", "/sessions", json={})["session_id"]
    now = scraped(measured)
    assert sample(now, "shelld_shells", state="busy") == 1
    assert sample(now, "shelld_shells", state="ready") >= 1
    assert sample(now, "shelld_shells_memory_bytes") > 1_000_000
    assert sample(now, "shelld_shells_processes") >= 2
    assert sample(now, "shelld_daemon_memory_bytes") > 10_000_000
    assert sample(now, "shelld_daemon_cpu_seconds_total") > 0
    measured.client.post("/kill")
    measured.finished(run_id)
    measured.client.delete(f"/sessions/{session}")
    later = scraped(measured)
    name = "shelld_shells_cpu_seconds_total"
    assert sample(later, name) >= sample(now, name) > 0, "what has ended is still in it"


def test_requests_are_counted_by_route(measured: RunningDaemon) -> None:
    """A route is a path as it is documented: neither names in it nor made-up paths or methods make a series."""
    measured.client.get("/runs/none-such")
    measured.client.get("/runs/nor-this/output")
    for path in ("/made/up/1", "/made/up/2"):
        measured.client.get(path)
    measured.ask("BREW", "/status", key=KEY)
    measured.client.get("/status")
    names = {labels for name, labels in scraped(measured) if name == "shelld_request_duration_seconds_count"}
    found = {tuple(dict(labels)[name] for name in ("method", "route", "status")) for labels in names}
    assert {("GET", "/runs/{run_id}", "404"), ("GET", "/runs/{run_id}/output", "404"), ("GET", "other", "404")} <= found
    assert ("GET", "/status", "200") in found
    assert {method for method, _, _ in found} <= {"GET", "POST", "DELETE", "other"}
    assert not any("made" in route or "none-such" in route for _, route, _ in found)


def test_requests_that_wait_are_counted(measured: RunningDaemon, tmp_path: Path) -> None:
    assert sample(scraped(measured), "shelld_requests_waiting") == 0
    run_id = measured.start(f"touch {tmp_path}/begun; sleep 4753")
    with (
        httpx.Client(base_url=measured.url, headers={"X-Shell-Key": KEY}) as other,
        other.stream("GET", f"/runs/{run_id}/output", headers={"Accept": "text/event-stream"}),
    ):
        assert sample(scraped(measured), "shelld_requests_waiting") == 1
    measured.client.post("/kill")
    measured.finished(run_id)


def test_the_address_has_nothing_else(measured: RunningDaemon) -> None:
    """Neither another path nor another method, and nothing for a page of the web; the daemon's port has no metrics."""
    url = address(measured)
    assert ask(url, "GET", "/status", key=KEY).status == 404
    assert ask(url, "POST", "/metrics").status == 405
    assert ask(url, "GET", "/metrics", headers={"Host": "evil.example"}).status == 403
    assert measured.client.get("/metrics").status_code == 404
    text = httpx.get(f"{url}/metrics").text
    assert KEY not in text
    assert "/work" not in text


def used_in(text: str) -> set[str]:
    return set(re.findall(r"\bshelld_[a-z_]+", text))


def test_dashboard_and_alerts_name_only_what_there_is(measured: RunningDaemon) -> None:
    """Metrics and labels, all of them; and what there is stands in the documentation."""
    measured.run("true")
    samples = scraped(measured)
    names = {name for name, _ in samples}
    labels = {label for _, pairs in samples for label, _ in pairs} | {"job", "instance"}
    dashboard = json.loads((CONFIG / "grafana.json").read_text())
    rules = [
        rule for group in yaml.safe_load((CONFIG / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    assert len(rules) == 5
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for rule in rules]
    for expression in expressions:
        assert used_in(expression), expression
        assert used_in(expression) <= names, expression
        inside = re.findall(r"(\w+)(?:=~|!=|=)\"", expression)
        assert {*inside, *re.findall(r"by \(([\w, ]+)\)", expression.replace(", ", ") by ("))} <= labels, expression
    documented = used_in((CONFIG.parent / "docs" / "operations.md").read_text())
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names if not name.endswith("_created")}
    assert names == {name for name in documented if not name.endswith("_py")}
