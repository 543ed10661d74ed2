"""POST /exec: many jobs at once, each in a shell of its own, apart from the main shell and from each other."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.daemons import KEY, RunningDaemon, wait_for

JOBS = 100


def test_a_hundred_jobs_at_once(daemon: RunningDaemon) -> None:
    """Each has its own output and exit code, all run at the same time, and nothing of them stays."""
    before = daemon.shells()

    def job(number: int) -> Any:
        command = f"echo {number}; read -r line; echo $line >&2; (exit {number})"
        answer = daemon.ask("POST", f"/exec?timeout=0&run_id=job-{number}", body=command, key=KEY)
        return json.loads(answer.body)

    with ThreadPoolExecutor(20) as pool:
        started = list(pool.map(job, range(JOBS)))
    assert {result["status"] for result in started} == {"running"}
    assert len({result["session_id"] for result in started}) == JOBS
    assert daemon.state() == "ready"
    assert daemon.run("echo main")["stdout"] == "main\n"
    running = daemon.json("GET", "/runs?status=running")
    assert {run["run_id"] for run in running} == {result["run_id"] for result in started}
    for number in range(JOBS):
        assert daemon.client.post(f"/runs/job-{number}/stdin", content=f"line {number}\n").status_code == 200
    for number in range(JOBS):
        result = daemon.finished(f"job-{number}")
        assert (result["stdout"], result["stderr"]) == (f"{number}\n", f"line {number}\n")
        assert (result["status"], result["exit_code"]) == ("completed", number)
    wait_for(lambda: daemon.shells() == before)
    for number in range(JOBS):
        daemon.client.delete(f"/runs/job-{number}")
