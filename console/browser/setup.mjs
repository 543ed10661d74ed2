// A daemon of the test's own, and pages in a real browser that look at it. Run by scripts/test-console.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

export const KEY = "console-test-key";
export const PATIENCE = 60_000;
const SHOTS = process.env.SHELLD_SCREENSHOTS;
const PROGRAM = resolve(import.meta.dirname, "../../.venv/bin/shelld-py");
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
// What a browser does by itself is off: the page is to be the only one that asks for anything.
const OPTIONS = (
  "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking " +
  "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split(" ");

let browser = null;

export async function openBrowser() {
  browser ??= await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: OPTIONS });
  return browser;
}

export async function closeBrowser() {
  await browser?.close();
}

/** Waits until a function returns something; tells what it waited for where it never does. */
export async function until(what, condition, patience = PATIENCE) {
  const end = Date.now() + patience;
  for (;;) {
    const found = await condition();
    if (found) {
      return found;
    }
    assert.ok(Date.now() < end, `never: ${what}`);
    await new Promise((wake) => setTimeout(wake, 50));
  }
}

export class Daemon {
  constructor() {
    this.directory = mkdtempSync(join(tmpdir(), "demo-"));
    this.work = join(this.directory, "app");
    mkdirSync(this.work);
  }

  /** Starts it; a second time at the same port, as after a crash. */
  async start(settings = {}) {
    const all = {
      "server.port": this.port ?? 0,
      "server.data_directory": join(this.directory, "data"),
      "shell.working_directory": this.work,
      "shell.startup_file": "",
      "files.base_directory": this.work,
      "files.allowed_directories": JSON.stringify([this.work]),
      ...settings,
    };
    const options = Object.entries(all).flatMap(([name, value]) => ["--set", `${name}=${value}`]);
    this.process = spawn(PROGRAM, options, {
      env: { ...process.env, SHELLD_KEY: KEY },
      stdio: ["ignore", "ignore", "pipe"],
    });
    let log = "";
    this.process.stderr.on("data", (data) => {
      log += data;
    });
    this.url = await until(`the daemon serves: ${log}`, () => /serving on (http:\S+)/.exec(log)?.[1]);
    this.port = Number(new URL(this.url).port);
    await this.ask("POST", "/startup");
    return this;
  }

  /** Sends a request; returns its JSON. */
  async ask(method, path, body, key = KEY) {
    const answer = await fetch(this.url + path, {
      method,
      headers: { "X-Shell-Key": key, Accept: "application/json", "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    return answer.json();
  }

  run(command, options = {}) {
    return this.ask("POST", "/run", { command, ...options });
  }

  async end(signal = "SIGTERM") {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const ended = once(this.process, "exit");
      this.process.kill(signal);
      await ended;
    }
  }

  async remove() {
    await this.end("SIGKILL");
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** A page of its own person. What must never happen on any page is looked for when it is closed. */
export class Person {
  static async open(
    daemon,
    { key = KEY, width = 1280, height = 800, scheme = "dark", hash = true, touch = false } = {},
  ) {
    const context = await (await openBrowser()).newContext({
      viewport: { width, height },
      colorScheme: scheme,
      hasTouch: touch,
      acceptDownloads: true,
    });
    const person = new Person();
    person.context = context;
    person.daemon = daemon;
    person.faults = [];
    person.page = await context.newPage();
    person.page.setDefaultTimeout(PATIENCE);
    await context.addInitScript(() => {
      window.violations = [];
      document.addEventListener("securitypolicyviolation", (event) =>
        window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`),
      );
    });
    person.page.on("pageerror", (error) => person.faults.push(`error: ${error.message}`));
    person.page.on("dialog", (dialog) => {
      person.faults.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    person.page.on("request", (request) => {
      const url = new URL(request.url());
      if (url.protocol !== "blob:" && url.host !== new URL(daemon.url).host) {
        person.faults.push(`request to ${url.host}`);
      }
    });
    await person.page.goto(`${daemon.url}/console${hash ? `#key=${key}` : ""}`);
    if (hash) {
      await person.page.waitForSelector(".top, .key-page .error:not(:empty)");
    }
    return person;
  }

  /** Returns the text that a terminal of the page shows. */
  async terminal(selector = ".live .screen") {
    const rows = await this.page.locator(`${selector} .xterm-rows > div`).allTextContents();
    return rows.map((row) => row.replaceAll("\u00a0", " ").trimEnd()).join("\n");
  }

  async sees(text, selector) {
    await until(`the terminal shows ${text}`, async () => (await this.terminal(selector)).includes(text));
  }

  async says(selector, text) {
    await until(`${selector} says ${text}`, async () =>
      (
        await this.page
          .locator(selector)
          .first()
          .textContent({ timeout: 1000 })
          .catch(() => "")
      )?.includes(text),
    );
  }

  /**
   * Records what the browser does; returns what ends that and gives the longest that a page's thread was busy at one go,
   * in milliseconds of CPU: what else the machine does counts for nothing.
   */
  async tracing() {
    await (await openBrowser()).startTracing(this.page, { categories: ["toplevel", "__metadata"] });
    return async () => {
      const { traceEvents } = JSON.parse(await (await openBrowser()).stopTracing());
      const name = (event) => `${event.pid} ${event.tid}`;
      const mains = traceEvents.filter((each) => each.name === "thread_name" && each.args.name === "CrRendererMain");
      const threads = new Set(mains.map(name));
      const tasks = traceEvents.filter((each) => each.ph === "X" && threads.has(name(each)) && each.tdur);
      assert.ok(tasks.length > 100, `${tasks.length} tasks were recorded`);
      return tasks.reduce((most, each) => Math.max(most, each.tdur), 0) / 1000;
    };
  }

  tab(name) {
    return this.page.click(`[role=tab]:has-text("${name}")`);
  }

  async shot(name) {
    if (SHOTS) {
      await this.page.screenshot({ path: join(SHOTS, `${name}.png`) });
    }
  }

  /** What axe finds on the page as it is. axe is evaluated by the browser's own tools, past the policy of the page. */
  async axe() {
    const session = await this.context.newCDPSession(this.page);
    const evaluate = async (expression) => {
      const told = await session.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
      assert.equal(told.exceptionDetails, undefined, JSON.stringify(told.exceptionDetails));
      return told.result.value;
    };
    await evaluate(`${AXE};0`);
    const found =
      await evaluate(`axe.run(document, { resultTypes: ["violations"] }).then((told) => told.violations.flatMap(
      (rule) => rule.nodes.map((node) => rule.id + ": " + node.target.join(" ") + " – " + node.failureSummary)))`);
    await session.detach();
    return found;
  }

  async close() {
    const violations = await this.page.evaluate(() => window.violations);
    await this.context.close();
    assert.deepEqual([...this.faults, ...violations], []);
  }
}
