// The parts of the console that need no browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { complete, wordAt } from "../src/completion.ts";
import { diffLines } from "../src/diff.ts";
import { clock, duration, ending, firstLine, sign, size, title, toneOf } from "../src/format.ts";
import { commentSign, highlight } from "../src/highlight.ts";
import { topmost } from "../src/history.ts";
import { firstLineStart, linesOf } from "../src/plain.ts";
import { indexAfter, lengthOf, parseRecording, withoutIdle } from "../src/recording.ts";
import { EventParser } from "../src/sse.ts";
import { Model, matches } from "../src/state.ts";
import type { Run, Shell } from "../src/types.ts";
import { visibleRows } from "../src/window.ts";

function run(parts: Partial<Run>): Run {
  return {
    run_id: "r1",
    session_id: "main",
    command: "make test",
    description: null,
    status: "completed",
    cause: "exit",
    exit_code: 0,
    signal: null,
    error: null,
    stdout: null,
    original_stdout_size: 0,
    original_stderr_size: 0,
    cursor: 0,
    streams: "merged",
    working_directory: "/work",
    background_pids: [],
    awaiting_input: false,
    restored: false,
    started_at: "2026-11-21T08:56:42.400Z",
    duration: 1,
    usage: { cpu_seconds: 0, peak_memory_mb: 0, processes_left: 0 },
    ...parts,
  };
}

const SHELL: Shell = {
  session_id: "main",
  state: "ready",
  working_directory: "/work",
  run: null,
  last_run_id: null,
  created_at: "",
  expires_at: null,
};

test("events come whole, however they are cut", () => {
  const stream = 'event: state\nid: 7\ndata: {"a":1}\n\n:\n\nevent: gap\ndata: {}\n\n';
  for (let cut = 0; cut <= stream.length; cut++) {
    const parser = new EventParser();
    const events = [...parser.feed(stream.slice(0, cut)), ...parser.feed(stream.slice(cut))];
    assert.deepEqual(events, [
      { event: "state", id: "7", data: '{"a":1}' },
      { event: "gap", id: null, data: "{}" },
    ]);
  }
});

test("times and sizes are short", () => {
  assert.deepEqual([0.02, 3.14, 42.9, 65, 7384].map(duration), ["0.02 s", "3.1 s", "42 s", "01:05", "2:03:04"]);
  assert.equal(clock(42), "00:42");
  assert.deepEqual([0, 999, 4200, 104e6, 5e9].map(size), ["0 B", "999 B", "4.2 KB", "104 MB", "5.0 GB"]);
});

test("a run's end is told in words, and by a sign and a tone", () => {
  const told = (parts: Partial<Run>) => [ending(run(parts)), sign(run(parts)), toneOf(run(parts))];
  assert.deepEqual(told({}), ["", "✓", "good"]);
  assert.deepEqual(told({ exit_code: 2 }), ["exit 2", "✗", "bad"]);
  assert.deepEqual(told({ cause: "signal", signal: 11, exit_code: 139 }), ["SIGSEGV", "☠", "bad"]);
  assert.deepEqual(told({ status: "killed", cause: "oom", exit_code: null }), ["out of memory", "☠", "bad"]);
  assert.deepEqual(told({ status: "running", cause: null, exit_code: null }), ["", "●", "busy"]);
  assert.deepEqual(told({ status: "running", cause: null, awaiting_input: true }), ["waiting", "❚❚", "wait"]);
});

test("a run is called by its description, else by the first line of its command", () => {
  assert.equal(title(run({ description: "Run the tests" })), "Run the tests");
  assert.equal(title(run({ command: "\n cd app\nmake" })), "cd app …");
  assert.equal(firstLine("one"), "one");
});

test("events make the state", () => {
  const model = new Model();
  const going = run({ status: "running", cause: null, exit_code: null, duration: 2 });
  model.apply(
    { type: "snapshot", data: { state: "busy", shells: [{ ...SHELL, state: "busy" }], runs: [going] } },
    10_000,
  );
  assert.equal(model.current("main")?.run_id, "r1");
  assert.equal(model.elapsed(going, 13_000), 5);
  model.apply({ type: "run_ended", data: run({ exit_code: 1, working_directory: "/tmp" }) }, 14_000);
  model.apply({ type: "state", data: { session_id: "main", state: "ready", previous: "busy" } }, 14_000);
  assert.equal(model.current("main"), null);
  assert.equal(model.shells.get("main")?.state, "ready");
  assert.equal(model.shells.get("main")?.working_directory, "/tmp");
  model.addRun(going, 15_000); // a listing that is late
  assert.equal(model.runs.get("r1")?.status, "completed");
  model.apply({ type: "session_opened", data: { session_id: "s1", reason: "" } }, 1);
  model.apply({ type: "session_closed", data: { session_id: "s1", reason: "" } }, 2);
  assert.deepEqual([...model.shells.keys()], ["main"]);
  model.apply({ type: "port_opened", data: { port: 3000, pid: 1, session_id: "main" } }, 3);
  assert.equal(model.ports.size, 1);
  model.apply({ type: "snapshot", data: { state: "ready", shells: [SHELL], runs: [] } }, 4);
  assert.equal(model.ports.size, 0);
});

test("ten thousand runs stay in order, newest first", () => {
  const model = new Model();
  for (let index = 0; index < 10_000; index++) {
    const started_at = new Date(1_700_000_000_000 + ((index * 7919) % 10_000)).toISOString();
    model.addRun(run({ run_id: `r${index}`, started_at }), 0);
  }
  const times = model.ordered.map((each) => each.started_at);
  assert.deepEqual(times, [...times].sort().reverse());
});

test("runs are found by words, kind and session", () => {
  const failed = run({ exit_code: 1, description: "Build it" });
  assert.ok(matches(failed, "failed", null, "make BUILD"));
  assert.ok(!matches(failed, "failed", "s1", ""));
  assert.ok(!matches(failed, "running", null, ""));
  assert.ok(!matches(run({}), "failed", null, ""));
});

test("of a long list only what is seen is drawn", () => {
  assert.deepEqual(visibleRows(10_000, 46, 46_000, 460, 2), { first: 998, last: 1012, before: 45_908, after: 413_448 });
  assert.deepEqual(visibleRows(3, 46, 0, 460), { first: 0, last: 3, before: 0, after: 0 });
  assert.deepEqual(visibleRows(3, 46, 99_999, 460), { first: 3, last: 3, before: 138, after: 0 });
});

test("raw output becomes lines without escapes", () => {
  assert.deepEqual(linesOf("\x1b[31mred\x1b[0m\r\n10%\r50%\rdone\n\x1b]0;title\x07x\x1b(By"), ["red", "done", "xy"]);
  assert.deepEqual(linesOf("a\x00b\x9bc"), ["abc"]);
  assert.equal(firstLineStart(new TextEncoder().encode("half\nwhole")), 5);
});

test("hostile output takes linear time", () => {
  const begun = performance.now();
  for (const text of [
    "\x1b[".repeat(100_000),
    "\x1b]".repeat(100_000),
    `\x1b]${"x".repeat(500_000)}`,
    "\r".repeat(500_000),
  ]) {
    linesOf(text);
    highlight(text.slice(0, 2000), "//");
  }
  assert.ok(performance.now() - begun < 2000);
});

test("a unified diff is shown without its header, with gaps between its parts", () => {
  const text =
    "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n--- old\n+++ new\n@@ -9 +9 @@\n-a\n\\ No newline at end of file\n+b\n[the diff is longer and was cut here]\n";
  assert.deepEqual(
    diffLines(text).map((line) => `${line.kind}: ${line.text}`),
    [
      "same: same",
      "removed: -- old",
      "added: ++ new",
      "gap: ",
      "removed: a",
      "note: No newline at end of file",
      "added: b",
      "note: [the diff is longer and was cut here]",
    ],
  );
});

test("code is coloured by words, strings, numbers and comments", () => {
  const kinds = (line: string, sign: string | null) => highlight(line, sign).map((token) => [token.kind, token.text]);
  assert.deepEqual(kinds('if x == "a # b":  # why', "#"), [
    ["word", "if"],
    ["plain", " "],
    ["plain", "x"],
    ["plain", " == "],
    ["string", '"a # b"'],
    ["plain", ":  "],
    ["comment", "# why"],
  ]);
  assert.equal(highlight("a = 'it' // no", null).length, 1);
  assert.equal(commentSign("a.py"), "#");
  assert.equal(commentSign("notes.txt"), null);
  for (const line of ['x = "open', "a//b", "'", "`a`b", "url = http://x"]) {
    assert.equal(
      highlight(line, "//")
        .map((token) => token.text)
        .join(""),
      line,
    );
  }
});

test("a recording is read, also half a line at its end, and played without its pauses", () => {
  const text = '{"version":2,"width":80,"height":24}\n[0.5,"o","a"]\n[10.5,"o","b"]\n[11,"r","100x30"]\n[12,"o';
  const recording = parseRecording(text);
  assert.equal(recording.events.length, 3);
  assert.equal(lengthOf(recording), 11);
  assert.deepEqual(
    withoutIdle(recording, 1).events.map((event) => event.at),
    [0.5, 1.5, 2],
  );
  assert.equal(indexAfter(recording, 10.5), 2);
  assert.throws(() => parseRecording("{}"));
});

test("changes are asked for once, of the topmost directories", () => {
  assert.deepEqual(topmost(["/work", "/work/app", "/workshop", "/data/", "/data/x", "/work"]), [
    "/work",
    "/workshop",
    "/data/",
  ]);
  assert.deepEqual(topmost(["/tmp", "/"]), ["/"]);
});

test("paths are completed and quoted", () => {
  assert.equal(wordAt("cat src/ma", 10), "src/ma");
  assert.deepEqual(complete("ma", ["main.ts", "map/", "x"]), { text: "ma", offers: ["main.ts", "map/"] });
  assert.deepEqual(complete("a", ["a b'c"]), { text: "a\\ b\\'c ", offers: ["a b'c"] });
});
