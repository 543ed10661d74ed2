// Every view, light and dark, wide and narrow: pictures to look at (SHELLD_SCREENSHOTS), and axe on each.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { closeBrowser, Daemon, Person, until } from "./setup.mjs";

const SIZES = { wide: [1280, 800], narrow: [390, 844] };
let daemon;

/** What stands in for a tool: a function of the shell, so that the command is one that a person knows. */
const TOOL = [
  "npm() {",
  "printf '\\e[1m> app@2.1.0 test\\e[0m\\n> vitest run\\n\\n'",
  "for t in auth cart checkout; do printf ' \\e[42m\\e[30m PASS \\e[0m src/\\e[1m%s.test.ts\\e[0m \\e[2m(%d tests)\\e[0m\\n' $t 3; sleep 0.1; done",
  "printf ' \\e[43m\\e[30m RUNS \\e[0m src/\\e[1msearch.test.ts\\e[0m\\n\\n'",
  "printf '   \\e[32m✓\\e[0m finds words in titles \\e[2m3 ms\\e[0m\\n   \\e[32m✓\\e[0m ranks exact matches first \\e[2m5 ms\\e[0m\\n   \\e[33m…\\e[0m survives a million rows\\n'",
  "sleep 600",
  "}",
].join("\n");

const SEARCH = `import { index } from "./index.ts";

// Words are compared without case.
export function search(text: string): Hit[] {
  const words = text.toLowerCase().split(" ");
  const hits = index.filter((row) => row.has(words));
  return hits.slice(0, 20);
}
`;

before(async () => {
  daemon = new Daemon();
  writeFileSync(join(daemon.directory, "tools.sh"), TOOL);
  await daemon.start({ "shell.startup_file": join(daemon.directory, "tools.sh") });
  mkdirSync(join(daemon.work, "src"));
  writeFileSync(join(daemon.work, "package.json"), '{\n  "name": "app"\n}\n');
  writeFileSync(join(daemon.work, "src/search.ts"), SEARCH);
  await daemon.run("git init -q . && git add -A && git status --short", { description: "See what has changed" });
  await daemon.run("ls --color=always -l", { description: "List the project" });
  await daemon.run("cat src/indx.ts");
  await daemon.run("exit 2", { description: "Build" });
  await daemon.run("sh -c 'kill -SEGV $$'", { description: "Run the old binary" });
  await daemon.run('for i in $(seq 1 30); do echo "row $i"; sleep 0.01; done', { description: "Load the fixtures" });
  await daemon.ask("POST", "/sessions", {});
});
after(async () => {
  await closeBrowser();
  await daemon.remove();
});

for (const scheme of ["dark", "light"]) {
  for (const [size, [width, height]] of Object.entries(SIZES)) {
    test(`${scheme}, ${size}`, async () => {
      const person = await Person.open(daemon, { scheme, width, height, touch: size === "narrow" });
      const { page } = person;
      const look = async (name) => {
        await page.waitForTimeout(350); // for terminals to be drawn: they are pictures for people
        await person.shot(`${name}-${scheme}-${size}`);
        assert.deepEqual(await person.axe(), [], name);
      };
      const pane = (name) => (size === "narrow" ? page.click(`.panes button:has-text("${name}")`) : undefined);
      writeFileSync(join(daemon.work, "src/search.ts"), SEARCH);
      await daemon.run("npm test", { timeout: 0, description: "Run the tests" });
      await person.says(".top .state", "busy");
      await pane("Files");
      await page.click(".tree >> text=src");
      await page.click(".tree >> text=search.ts");
      await person.says(".code", "function");
      await daemon.ask("POST", "/files/replace", {
        path: "src/search.ts",
        old_string: "slice(0, 20)",
        new_string: "slice(0, 50)",
      });
      await until("the change", async () => (await page.locator(".history li").count()) > 0);
      await page.click(".history li button >> nth=0");
      await person.says(".diff", "50");
      await look("files");
      await pane("Terminal");
      await person.sees("survives a million rows");
      await page.waitForTimeout(2500); // for a few figures of what it uses
      await look("live");
      if (scheme === "dark" && size === "wide") {
        await page.setViewportSize({ width: 1060, height: 690 });
        await page.waitForTimeout(500);
        await person.shot("readme"); // docs/console.png is this one
        await page.setViewportSize({ width, height });
      }
      await pane("Runs");
      await look("runs");
      await page.click(".run:has-text('List the project')");
      await look("ended");
      await person.page.click(".about-run .command-line");
      await look("about");
      await person.page.click(".about-run .command-line");
      for (const tab of ["Screen", "Output", "Recording", "Files changed"]) {
        await pane("Runs");
        await page.click(".run:has-text('Load the fixtures')");
        await person.tab(tab);
        await look(tab.toLowerCase().replace(" ", "-"));
      }
      if (size === "narrow") {
        await pane("Ports");
        await look("ports");
      }
      await daemon.ask("POST", "/kill");
      await person.page.keyboard.press("l");
      await person.says(".controls", "Run");
      await look("ready");
      await person.close();
    });
  }
}
