// The walk of a person through the console, in a real browser, against a real daemon.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { closeBrowser, Daemon, KEY, Person, until } from "./setup.mjs";

let daemon;

before(async () => {
  daemon = await new Daemon().start();
  writeFileSync(join(daemon.work, "app.py"), 'def main():\n    print("hello", 42)  # greet\n');
});
after(async () => {
  await closeBrowser();
  await daemon.remove();
});

async function runs(person, command, options) {
  const told = await person.daemon.run(command, { timeout: 0, ...options });
  assert.equal(told.status, "running", JSON.stringify(told));
  return told.run_id;
}

async function ready() {
  await daemon.ask("POST", "/kill");
  await until("the shell is ready", async () => (await daemon.ask("GET", "/status")).state === "ready");
}

test("the key is entered, a wrong one looks like one, and it stays in the tab", async () => {
  const person = await Person.open(daemon, { hash: false });
  await person.page.fill("#key", "wrong");
  await person.page.keyboard.press("Enter");
  await person.says(".key-page .error", "not the key");
  await person.shot("key-dark-wide");
  assert.deepEqual(await person.axe(), []);
  await person.page.fill("#key", KEY);
  await person.page.keyboard.press("Enter");
  await person.says(".top .state", "ready");
  await person.page.reload();
  await person.says(".top .state", "ready");
  assert.equal(await person.page.evaluate(() => localStorage.getItem("shelld-key")), null);
  await person.close();
});

test("the key of a link is taken out of the address, and the page paints at once", async () => {
  const person = await Person.open(daemon);
  assert.equal(person.page.url(), `${daemon.url}/console`);
  await person.says(".top .state", "ready");
  // How long it takes until it paints is the machine's; what it waits for is not: the page itself, and two files.
  const files = await person.page.evaluate(() =>
    [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
      .filter((entry) => ["navigation", "link", "script"].includes(entry.initiatorType) && !/icon-/.test(entry.name))
      .map((entry) => [new URL(entry.name).pathname, entry.encodedBodySize]),
  );
  const bytes = files.reduce((sum, [, size]) => sum + size, 0);
  assert.deepEqual(files.map(([path]) => path).sort(), ["/console", "/console/app.css", "/console/app.js"]);
  assert.ok(bytes > 50_000 && bytes < 150_000, `${bytes} bytes`);
  await person.page.reload(); // warm: the first time the browser itself has to start
  const paint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  const milliseconds = await until("it paints", () => person.page.evaluate(paint));
  console.log(`# first paint after ${Math.round(milliseconds)} ms, of ${bytes} bytes in ${files.length} files`);
  await person.close();
});

test("at a glance: what runs, what it waits for, how it was", async () => {
  const person = await Person.open(daemon);
  await runs(person, "sleep 30; read -p 'Your name? ' who", { description: "Ask who it is" });
  await person.says(".top .state", "busy");
  await person.says(".doing", "Ask who it is");
  await until("title and icon", async () => (await person.page.title()).startsWith("● Ask who it is"));
  assert.match(await person.page.getAttribute("#icon", "href"), /icon-busy/);
  await daemon.ask("POST", "/kill");
  await runs(person, "read -p 'Your name? ' who");
  await person.says(".top .state", "waiting");
  await person.says(".doing", "Your name?");
  await until("icon", async () => /icon-waiting/.test(await person.page.getAttribute("#icon", "href")));
  await ready();
  await daemon.run("kill -9 $$");
  await person.says(".top .state", "dead");
  await until("icon", async () => /icon-dead/.test(await person.page.getAttribute("#icon", "href")));
  await person.page.click("text=Recycle the shell");
  await person.says(".top .state", "ready");
  await person.close();
});

test("a person takes over, answers, and hands back; the other one sees it, and the agent is told", async () => {
  const one = await Person.open(daemon);
  const two = await Person.open(daemon, { scheme: "light" });
  const runId = await runs(one, "read -p 'Your name? ' who; echo Hello, $who; read -p 'And? '");
  await one.sees("Your name?");
  await two.sees("Your name?");
  await one.page.click("text=Take over");
  await one.says(".controls .who", "You are typing");
  await one.page.keyboard.type("Ada\n");
  await one.sees("Hello, Ada");
  await two.sees("Hello, Ada");
  await two.says(".controls .who", "Another person");
  await one.shot("taken-dark-wide");
  await one.page.keyboard.press("Control+Shift+Escape");
  await one.says(".controls", "Take over");
  await one.page.keyboard.type("x"); // reaches nobody
  const told = await daemon.ask("GET", `/runs/${runId}`);
  assert.equal(told.typed_by_person, true);
  assert.ok(!told.stdout.includes("x"));
  await ready();
  const interrupted = await runs(one, "sleep 60");
  await one.says(".top .state", "busy");
  await one.page.click("text=Ctrl-C");
  await one.says(".top .state", "ready");
  assert.equal((await daemon.ask("GET", `/runs/${interrupted}`)).typed_by_person, true);
  const killed = await runs(one, "(trap '' INT; sleep 60)");
  await one.says(".top .state", "busy");
  await one.page.click(".controls button:has-text('Kill')");
  await one.says(".top .state", "ready");
  const ended = await daemon.ask("GET", `/runs/${killed}`);
  assert.deepEqual([ended.typed_by_person, ended.error], [true, "Killed by a person."]);
  await one.close();
  await two.close();
});

test("nothing that was meant for a command reaches the next one", async () => {
  const person = await Person.open(daemon);
  await runs(person, "read -p 'First? '");
  await person.sees("First?");
  await person.page.click("text=Take over");
  await person.says(".controls .who", "You are typing");
  await person.page.keyboard.type("one\n");
  await person.says(".top .state", "ready");
  await runs(person, "read -p 'Second? ' answer; echo got $answer");
  await person.sees("Second?");
  await person.page.keyboard.type("two\n");
  await person.says(".controls", "Take over");
  assert.equal((await daemon.ask("GET", "/status")).run.typed_by_person, undefined);
  await ready();
  await person.close();
});

test("a command that the agent's comes before is refused and stays; the agent's gets nothing that is typed", async () => {
  const person = await Person.open(daemon);
  await person.page.routeWebSocket(/\/terminal\?replay=0$/, (page) => {
    const server = page.connectToServer();
    page.onMessage(async (message) => {
      if (typeof message === "string" && JSON.parse(message).type === "run") {
        await daemon.run("read -p 'Agent? '", { timeout: 0 });
      }
      server.send(message);
    });
  });
  await person.page.reload();
  await person.page.fill(".command input", "echo person's");
  await person.page.keyboard.press("Enter");
  await person.says(".notices", "Refused");
  await person.says(".controls .who", "The agent has the keyboard");
  await person.page.keyboard.type("y\n");
  assert.equal((await daemon.ask("GET", "/status")).run.typed_by_person, undefined);
  await ready();
  await until("what was typed is there", async () => {
    return (await person.page.inputValue(".command input", { timeout: 1000 }).catch(() => "")) === "echo person's";
  });
  await person.close();
});

test("a full-screen program is shown, typed into and fitted", async () => {
  const person = await Person.open(daemon);
  const script = "printf '\\e[?1049h\\e[H\\e[41mred\\e[0m\\e[24;1Hbottom\\e[6n\\e[c'; read -n 1; printf '\\e[?1049l'";
  const runId = await runs(person, script);
  await person.sees("bottom");
  await person.page.click("text=Take over");
  await person.says(".controls .who", "You are typing");
  await person.page.keyboard.press("q");
  await person.says(".top .state", "ready");
  const told = await daemon.ask("GET", `/runs/${runId}?format=raw`);
  assert.doesNotMatch(told.stdout, /\x1b\[\d+;\d+R|\x1b\[\?1;2c/); // no answer to a question was typed
  await person.page.click("text=Fit to window");
  await person.page.fill(".command input", "stty size");
  await person.page.keyboard.press("Enter");
  await until("the size is another", async () => {
    const [run] = await daemon.ask("GET", "/runs?limit=1");
    const output = (await daemon.ask("GET", `/runs/${run.run_id}`)).stdout;
    return /^\d+ \d+\n$/.test(output) && output !== "24 80\n";
  });
  await daemon.ask("POST", "/resize", { rows: 24, cols: 80 });
  await person.close();
});

test("where nothing runs there is a command line, with history and paths", async () => {
  const person = await Person.open(daemon);
  await person.page.fill(".command input", "cat ap");
  await person.page.keyboard.press("Tab");
  await until("completed", async () => (await person.page.inputValue(".command input")) === "cat app.py ");
  await person.page.keyboard.press("Enter");
  await person.sees('print("hello", 42)');
  await person.page.focus(".command input");
  await person.page.keyboard.press("ArrowUp");
  assert.equal(await person.page.inputValue(".command input"), "cat app.py ");
  await person.page.fill(".command input", "read -p 'Who? '; echo by $REPLY");
  await person.page.keyboard.press("Enter");
  await person.sees("Who?");
  await person.says(".controls .who", "You are typing"); // whoever runs a command types into it
  await person.page.keyboard.type("me\n");
  await person.sees("by me");
  const [run] = await daemon.ask("GET", "/runs?limit=1");
  assert.equal(run.typed_by_person, true);
  await until("the next command can be typed", () =>
    person.page.evaluate(() => document.activeElement?.matches(".command input")),
  );
  await person.close();
});

test("runs are found, filtered and looked at; only what is seen is drawn", async () => {
  await daemon.run("echo needle; exit 3", { description: "Find me" });
  for (let index = 0; index < 150; index++) {
    await daemon.run(`: ${index}`);
  }
  const person = await Person.open(daemon);
  await person.says(".runs .count", "1");
  assert.ok((await person.page.locator(".run").count()) < 60);
  await person.page.keyboard.press("/");
  await person.page.keyboard.type("find ME");
  await person.says(".runs .count", "1 of");
  await person.says(".run", "exit 3");
  await person.page.click(".run");
  await person.sees("needle");
  await person.tab("Output");
  await person.says(".lines", "needle");
  await person.page.fill(".runs input", "");
  await person.page.click(".filters button:has-text('Failed')");
  await until(
    "only failures",
    async () => (await person.page.locator(".run .end").count()) === (await person.page.locator(".run").count()),
  );
  await person.page.click(".filters button:has-text('All')");
  await person.page.locator(".list").evaluate((list) => list.scrollTo(0, list.scrollHeight));
  await until("the oldest", async () => (await person.page.locator(".run").count()) > 0);
  await person.page.keyboard.press("Escape");
  await person.says(".live-badge", "Live");
  await person.close();
});

test("a recording is played, and sought in", async () => {
  const { run_id } = await daemon.run("for i in 1 2 3; do echo step $i; sleep 0.3; done", {
    description: "Three steps",
  });
  const person = await Person.open(daemon);
  await person.page.click(`#run-${run_id}`);
  await person.tab("Recording");
  await person.sees("step 3");
  await person.page.locator("input[type=range]").fill("0.1");
  await until("it is at its beginning", async () => !(await person.terminal()).includes("step 3"));
  await person.sees("step 1");
  await person.page.selectOption(".player select", "4");
  await person.page.click("text=Play");
  await person.sees("step 3");
  await person.shot("recording-dark-wide");
  assert.deepEqual(await person.axe(), []);
  await person.close();
});

test("the screen is a picture", async () => {
  const { run_id } = await daemon.run("printf '\\e[1;32mgreen\\e[0m and   wide\\n'");
  const person = await Person.open(daemon);
  await person.page.click(`#run-${run_id}`);
  await person.tab("Screen");
  const picture = person.page.locator(".picture img");
  await until("it is drawn", () => picture.evaluate((img) => img.complete && img.naturalWidth > 100));
  assert.match(await picture.getAttribute("alt"), /green and {3}wide/);
  await person.close();
});

test("files: tree, colours, changes with diffs, undo, upload, download", async () => {
  await daemon.ask("POST", "/files/create", { path: "before.txt", content: "made before\n" });
  const person = await Person.open(daemon);
  await person.page.click(".history >> text=before.txt"); // also what was changed before the page was open
  await person.says(".diff .added", "made before");
  await person.page.click(".file >> text=Undo");
  await until("it is undone", async () => !(await person.page.locator(".history >> text=before.txt").count()));
  await person.page.click(".tree >> text=app.py");
  await person.says(".code", "def main");
  assert.equal(await person.page.locator(".code .word").first().textContent(), "def");
  await daemon.ask("POST", "/files/replace", { path: "app.py", old_string: "42", new_string: "43" });
  await person.says(".code", "43");
  await person.page.click(".history li button");
  await person.says(".diff .added", "43");
  await person.says(".diff .removed", "42");
  await person.shot("files-dark-wide");
  assert.deepEqual(await person.axe(), []);
  await person.page.click(".file .bar >> text=File");
  await person.says(".code", "43");
  await person.page.click(".file >> text=Undo");
  await person.says(".code", "42");
  assert.match(readFileSync(join(daemon.work, "app.py"), "utf8"), /42/);
  await person.page
    .locator("input[type=file]")
    .first()
    .setInputFiles({ name: "up.txt", mimeType: "", buffer: Buffer.from("up") });
  await person.says(".tree", "up.txt");
  assert.equal(readFileSync(join(daemon.work, "up.txt"), "utf8"), "up");
  const transfer = await person.page.evaluateHandle(() => {
    const data = new DataTransfer();
    data.items.add(new File(["dropped"], "drop.txt"));
    return data;
  });
  await person.page.dispatchEvent(".tree > .directory", "drop", { dataTransfer: transfer });
  await person.says(".tree", "drop.txt");
  const [file] = await Promise.all([person.page.waitForEvent("download"), person.page.click(".file >> text=Download")]);
  assert.equal(file.suggestedFilename(), "app.py");
  await person.close();
});

test("sessions are opened, seen beside each other and closed; a port is told of", async () => {
  const person = await Person.open(daemon);
  await person.page.click("[aria-label='Open a session']");
  await until("two sessions", async () => (await person.page.locator(".sessions li").count()) === 2);
  const [session] = (await daemon.ask("GET", "/sessions")).filter((each) => each.session_id !== "main");
  const server =
    "exec python3 -c \"import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler); s.serve_forever()\"";
  await daemon.ask("POST", `/sessions/${session.session_id}/run`, { command: server, timeout: 0 });
  await until("a port", async () => (await person.page.locator(".ports li").count()) === 1);
  await person.page.click("text=Side by side");
  await until("two terminals", async () => (await person.page.locator(".one .xterm").count()) === 2);
  await person.shot("sessions-dark-wide");
  assert.deepEqual(await person.axe(), []);
  await person.page.click(`[aria-label='Close session ${session.session_id}']`);
  await until("one session", async () => (await person.page.locator(".sessions li").count()) === 1);
  await until("no port", async () => (await person.page.locator(".ports li").count()) === 0);
  await person.close();
});

test("what a command did to files is listed, and what it serves is opened through the proxy", async () => {
  const other = await new Daemon().start({ "server.proxy": true, "server.proxy_port": 0 });
  const { run_id } = await other.run("echo written > new.txt", { changes: true });
  const busy = await other.run("sleep 60", { timeout: 0 });
  await other.ask("POST", "/files/create", { path: "meanwhile.txt", content: "x" });
  await other.ask("POST", "/kill");
  const serve =
    "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); s.serve_forever()";
  await other.run(`python3 -c "${serve}"`, { timeout: 0 });
  const person = await Person.open(other);
  await person.page.click(`#run-${run_id}`);
  await person.tab("Files changed");
  await person.says(".changes .created", "new.txt");
  await person.page.click(".changes button");
  await person.says(".code", "written");
  await person.page.click(`#run-${busy.run_id}`);
  await person.says(".view", 'started with "changes": true');
  await person.says(".changes .create", "meanwhile.txt");
  await until("the port", async () => (await person.page.locator(".ports li").count()) === 1);
  const [opened] = await Promise.all([person.context.waitForEvent("page"), person.page.click(".ports li button")]);
  await until("its page", async () => /new\.txt/.test(await opened.content().catch(() => "")));
  assert.notEqual(new URL(opened.url()).port, new URL(other.url).port);
  await person.close();
  await other.remove();
});

test("an observer's page changes nothing, and says why", async () => {
  const { key, observer_id } = await daemon.ask("POST", "/observers", { expires: "1h" });
  const person = await Person.open(daemon, { key });
  await person.says(".badge", "observer");
  await runs(person, "echo watched; sleep 60");
  await person.sees("watched");
  for (const name of ["Take over", "Ctrl-C", "Kill"]) {
    const button = person.page.locator(`.controls button:has-text("${name}")`);
    assert.ok(await button.isDisabled());
    assert.match(await button.getAttribute("title"), /only looks/);
  }
  assert.ok(await person.page.locator("[aria-label='Open a session']").isDisabled());
  await person.page.keyboard.press("t");
  await person.page.keyboard.type("x");
  await person.shot("observer-dark-wide");
  await ready();
  assert.ok(await person.page.locator(".command input").isDisabled());
  await daemon.ask("DELETE", `/observers/${observer_id}`);
  await person.says(".key-page .error", "good no more");
  await person.close();
});

test("what is hostile is text", async () => {
  const name = '<img src=x onerror="window.pwned=1">';
  writeFileSync(join(daemon.work, `${name}.html`), "<script>window.pwned=1</script>\n");
  const person = await Person.open(daemon);
  const html = `<script>window.pwned=1</script>${name}`;
  await daemon.run(
    `: '${html}'; printf '%s\\n' '${html}'; printf '\\e]0;owned\\a\\e]8;;javascript:pwned=1\\alink\\e]8;;\\a\\e]52;c;cHduZWQ=\\a'`,
    { description: html },
  );
  await person.sees("<script>window.pwned=1</script>");
  await person.page.click(`.run >> nth=0`);
  for (const tab of ["Terminal", "Output", "Screen", "Recording", "Files changed"]) {
    await person.tab(tab);
  }
  await person.page.click(".about-run .command-line");
  await person.says(".facts", html);
  await person.page.click(`.tree >> text=onerror`);
  await person.says(".code", "<script>");
  assert.equal(await person.page.evaluate(() => window.pwned), undefined);
  assert.doesNotMatch(await person.page.title(), /owned$/);
  assert.equal(await person.page.locator("#app script, #app img[src=x]").count(), 0);
  await person.close();
});

test("100 MB of output freeze nothing, and both of its ends can be read", async () => {
  const person = await Person.open(daemon);
  await person.says(".top .state", "ready");
  const longest = await person.tracing();
  const runId = await runs(person, "seq 1000000000 1009090909", { description: "A flood" });
  await until(
    "it is over",
    async () => (await daemon.ask("GET", `/runs/${runId}?max_output=1`)).status === "completed",
    120_000,
  );
  const told = await daemon.ask("GET", `/runs/${runId}?max_output=1`);
  assert.ok(told.cursor >= 99_999_999);
  await person.says(".top .state", "ready");
  await person.page.click(`#run-${runId}`);
  await person.tab("Output");
  await person.says(".lines", "1009090909");
  await person.page.click("text=Beginning");
  await person.says(".lines", "1000000000");
  await person.page.locator(".lines").evaluate((lines) => lines.scrollTo(0, lines.scrollHeight));
  await until("it is read on", async () => !/ 262 KB of/.test(await person.page.locator(".output .bar").textContent()));
  const milliseconds = await longest();
  console.log(`# the longest task took ${Math.round(milliseconds)} ms of CPU`);
  assert.ok(milliseconds < 200, `${milliseconds} ms`);
  assert.ok((await person.page.locator(".lines .line").count()) < 200);
  await person.close();
});

test("a lost connection looks like one, and comes back; so does a daemon that has ended", async () => {
  const other = await new Daemon().start();
  const person = await Person.open(other);
  await person.says(".top .state", "ready");
  await other.end("SIGKILL");
  await person.says(".notices", "Connection lost");
  await person.shot("lost-dark-wide");
  assert.match(await person.page.getAttribute("#icon", "href"), /icon-lost/);
  await other.start();
  await person.says(".top .state", "ready");
  await until("the notice is gone", async () => !(await person.page.locator(".trouble").count()));
  await other.run("echo afterwards");
  await person.sees("afterwards");
  await other.end();
  await until("it has ended", async () => /ended|lost/.test(await person.page.locator(".notices").textContent()));
  await person.close();
  await other.remove();
});

test("memory near its limit is red", async () => {
  const other = await new Daemon().start({ "limits.memory_mb": 64 });
  const person = await Person.open(other);
  await other.run("python3 -c 'b = bytearray(47 << 20); import time; time.sleep(60)'", { timeout: 0 });
  await until("red", async () => (await person.page.locator(".graph.high").count()) === 1);
  await person.close();
  await other.remove();
});

test("by keys alone", async () => {
  await daemon.run("true");
  const person = await Person.open(daemon);
  await person.says(".top .state", "ready");
  await person.page.keyboard.press("?");
  await person.says("dialog", "take over");
  await person.shot("keys-dark-wide");
  assert.deepEqual(await person.axe(), []);
  await person.page.keyboard.press("Escape");
  await until("the keys are gone", async () => !(await person.page.locator("dialog").count()));
  await person.page.keyboard.press("j");
  await person.says(".back", "Back to live");
  await person.page.keyboard.press("3");
  assert.equal(await person.page.locator("[aria-selected=true][role=tab]").textContent(), "Output");
  await person.page.keyboard.press("l");
  await person.says(".live-badge", "Live");
  await person.page.keyboard.press("d");
  assert.equal(await person.page.evaluate(() => document.documentElement.dataset.theme), "light");
  await person.page.keyboard.press("d");
  await person.close();
});
