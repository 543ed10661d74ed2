"""Tools for a command that is started and then asked after: they are the operations of its run."""

import re

from tests.daemons import wait_for
from tests.tools.conftest import Bench


def test_a_job_from_its_start_to_its_end(bench: Bench) -> None:
    started = bench.call("shell_start", command="echo a; sleep 0.3; echo b; (exit 7)", description="two letters")
    shell_id = started.result["shell_id"]
    assert list(started.result) == ["shell_id", "status", "output", "cursor"]
    assert (started.result["status"], started.answer["running"]) == ("running", True)
    assert started.answer["run_id"] == shell_id
    assert f'shell_wait {{"shell_id": "{shell_id}", "from_cursor": ' in started.footer
    status = bench.call("shell_status", shell_id=shell_id)
    assert (status.result["command"], status.result["description"]) == (
        "echo a; sleep 0.3; echo b; (exit 7)",
        "two letters",
    )
    assert (status.result["status"], status.result["exit_code"]) == ("running", None)
    waited = bench.call("shell_wait", shell_id=shell_id)
    assert (waited.result["output"], waited.result["exit_code"], waited.result["eof"]) == ("a\nb\n", 7, True)
    assert waited.text.startswith("a\nb\n[exit code 7, 3")
    over_http = bench.daemon.json("GET", f"/runs/{shell_id}")
    status = bench.call("shell_status", shell_id=shell_id)
    assert status.body == ""
    ended = {name: value for name, value in status.result.items() if name != "shell_id"}
    assert ended == {name: over_http[name] for name in ended}
    closed = bench.call("shell_close", shell_id=shell_id)
    assert closed.result == {"shell_id": shell_id, "killed": False}
    assert closed.text == f"[shell_id {shell_id} is closed; it had ended]"
    assert bench.daemon.client.get(f"/runs/{shell_id}").status_code == 404
    for tool in ("shell_status", "shell_wait", "shell_close"):
        assert bench.refused(tool, shell_id=shell_id)["code"] == "run_not_found"


def test_inline_wait_gives_the_end_of_a_quick_command(bench: Bench) -> None:
    started = bench.call("shell_start", command="echo a; echo b >&2; (exit 1)", inline_wait=10)
    assert started.result["status"] == "completed"
    assert (started.result["output"], started.result["cursor"]) == ("a\nb\n", 4)
    assert started.footer.startswith("exit code 1, ")
    assert "shell_wait" not in started.footer


def test_reads_join_to_the_whole_and_are_those_of_the_run(bench: Bench) -> None:
    shell_id = bench.call("shell_start", command="seq 100; printf end", inline_wait=10).result["shell_id"]
    cursor, parts = 0, []
    while True:
        read = bench.call("shell_read", shell_id=shell_id, from_cursor=cursor, limit=50)
        over_http = bench.daemon.json("GET", f"/runs/{shell_id}/output?cursor={cursor}&limit=50")
        assert read.result == {"shell_id": shell_id, **{name: over_http[name] for name in list(read.result)[1:]}}
        parts.append(read.result["output"])
        cursor = read.result["next_cursor"]
        if read.result["eof"]:
            break
        assert f"more: shell_read from_cursor {cursor}" in read.footer
    assert "".join(parts) == "".join(f"{number}\n" for number in range(1, 101)) + "end"
    assert len(parts) > 4


def test_standard_error_of_a_job_that_keeps_it_apart(bench: Bench) -> None:
    """The shell_ tools take the id of any run."""
    run_id = bench.call("shell_exec", command="echo out; echo err >&2").result["run_id"]
    assert bench.call("shell_read", shell_id=run_id, from_cursor=0, stream="stderr").result["output"] == "err\n"
    assert bench.call("shell_wait", shell_id=run_id).text.startswith("out\n[stderr]\nerr\n[exit code 0, ")
    merged = bench.call("shell_start", command="echo err >&2", inline_wait=10).result["shell_id"]
    read = bench.call("shell_read", shell_id=merged, from_cursor=0, stream="stderr").result
    assert (read["output"], read["eof"]) == ("", True)


def test_waiting_for_output_returns_when_it_comes(bench: Bench) -> None:
    shell_id = bench.call("shell_start", command="echo a; sleep 0.2; echo b; sleep 60").result["shell_id"]
    first = bench.call("shell_wait", shell_id=shell_id, from_cursor=0).result
    assert (first["output"], first["status"]) == ("a\n", "running")
    second = bench.call("shell_wait", shell_id=shell_id, from_cursor=first["next_cursor"]).result
    assert (second["output"], second["next_cursor"], second["eof"]) == ("b\n", 4, False)
    third = bench.call("shell_wait", shell_id=shell_id, from_cursor=4, timeout=0.1)
    assert (third.result["output"], third.answer["running"]) == ("", True)
    closed = bench.call("shell_close", shell_id=shell_id)
    assert closed.result["killed"] is True
    assert closed.text == f"[shell_id {shell_id} is killed and closed]"


def test_a_question_is_answered(bench: Bench) -> None:
    started = bench.call("shell_start", command='read -p "sure? " x; echo "<$x>"; cat', inline_wait=10)
    shell_id = started.result["shell_id"]
    assert (started.result["output"], started.result["cursor"]) == ("sure? ", 6)
    assert started.footer.startswith("waiting for input, ")
    assert "shell_write answers it" in started.footer
    assert bench.call("shell_status", shell_id=shell_id).result["awaiting_input"] is True
    waited = bench.call("shell_wait", shell_id=shell_id, from_cursor=6, timeout=10)  # nothing can come: at once
    assert (waited.result["output"], waited.result["awaiting_input"]) == ("", True)
    written = bench.call("shell_write", shell_id=shell_id, text="yes\n")
    assert written.result == {"shell_id": shell_id, "accepted": 4}
    assert re.search(r"4 bytes typed, shell_wait .*\"from_cursor\": 6", written.footer)
    assert bench.call("shell_wait", shell_id=shell_id, from_cursor=6).result["output"] == "<yes>\n"
    assert bench.call("shell_write", shell_id=shell_id, text="x\n", eof=True).result["accepted"] == 6
    assert bench.call("shell_wait", shell_id=shell_id).result["exit_code"] == 0
    refusal = bench.refused("shell_write", shell_id=shell_id, text="late\n")
    assert (refusal["status"], refusal["code"]) == (409, "no_running_command")


def test_nobody_is_told_to_type_into_pipes(bench: Bench) -> None:
    """They have no input: neither the first answer nor a later one speaks of it."""
    started = bench.call("shell_exec", command="echo on; sleep 60", streams="pipes", timeout=0)
    shell_id = started.result["run_id"]
    texts = [started.text, bench.call("shell_status", shell_id=shell_id).text]
    assert all("shell_wait" in text and "shell_write" not in text for text in texts)
    bench.call("shell_close", shell_id=shell_id)


def test_an_interrupt_is_a_key(bench: Bench) -> None:
    shell_id = bench.call("shell_start", command="echo on; sleep 60").result["shell_id"]
    bench.call("shell_wait", shell_id=shell_id, from_cursor=0)
    bench.call("shell_write", shell_id=shell_id, text="\u0003")
    waited = bench.call("shell_wait", shell_id=shell_id)
    assert (waited.result["exit_code"], waited.result["signal"]) == (130, 2)
    assert "exit code 130, signal 2 (SIGINT)" in waited.footer


def test_a_job_in_a_directory_with_variables(bench: Bench) -> None:
    started = bench.call(
        "shell_start", command='pwd; echo "$A"', directory=str(bench.directory), environment={"A": "b"}, inline_wait=10
    )
    assert started.result["output"] == f"{bench.directory}\nb\n"
    refusal = bench.refused("shell_start", command="pwd", directory=str(bench.directory / "nowhere"))
    assert (refusal["status"], refusal["code"]) == (400, "invalid_request")


def test_a_long_output_is_cut_in_the_middle(bench: Bench) -> None:
    shell_id = bench.call("shell_start", command="seq 100000").result["shell_id"]
    waited = bench.call("shell_wait", shell_id=shell_id).result
    assert waited["next_cursor"] == 588895
    assert f'characters omitted; the full output: shell_read with shell_id "{shell_id}"' in waited["output"]
    assert waited["output"].startswith("1\n2\n")
    assert waited["output"].endswith("\n100000\n")


def test_the_shell_of_a_job_is_gone_when_it_is_closed(bench: Bench) -> None:
    shell_id = bench.call("shell_start", command="echo $$; sleep 60").result["shell_id"]
    pid = int(bench.call("shell_wait", shell_id=shell_id, from_cursor=0).result["output"])
    assert pid in bench.daemon.shells()
    bench.call("shell_close", shell_id=shell_id)
    wait_for(lambda: pid not in bench.daemon.shells())
