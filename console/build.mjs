// Builds the page into ../shelld_py/console, each file beside a compressed one; with --tests, the unit tests into .test.
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const TARGET = new URL("../shelld_py/console/", import.meta.url);
const MOST = 250_000; // bytes of the whole page, compressed

/** Lets xterm.js set styles in ways that a content security policy allows: src/sheet.ts says which. */
const styledXterm = {
  name: "styled-xterm",
  setup(build) {
    build.onLoad({ filter: /xterm[/\\]lib[/\\]xterm\.mjs$/ }, async ({ path }) => {
      let patched = `import { sheetElement } from ${JSON.stringify(resolve("src/sheet.ts"))};\n${await readFile(path, "utf8")}`;
      for (const [found, instead, times] of [
        [/(?:\w+\.)+createElement\("style"\)/g, "sheetElement()", 3],
        [/(\w+)\.setAttribute\("style",/g, 'Reflect.set($1.style,"cssText",', 1],
      ]) {
        if (patched.match(found)?.length !== times) {
          throw new Error(`This xterm.js sets styles in other ways than ${found}: see src/sheet.ts.`);
        }
        patched = patched.replace(found, instead);
      }
      return { contents: patched, loader: "js" };
    });
  },
};

if (process.argv.includes("--tests")) {
  const tests = (await readdir("test")).map((name) => `test/${name}`);
  await build({
    entryPoints: tests,
    bundle: true,
    platform: "node",
    format: "esm",
    outdir: ".test",
    outExtension: { ".js": ".mjs" },
  });
} else {
  const built = await build({
    entryPoints: { app: "src/main.tsx" },
    bundle: true,
    minify: true,
    write: false,
    outdir: "out",
    target: ["es2022"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    plugins: [styledXterm],
  });
  const files = new Map(built.outputFiles.map((file) => [file.path.split("/").at(-1), Buffer.from(file.contents)]));
  for (const name of await readdir("static")) {
    files.set(name, await readFile(`static/${name}`));
  }
  await mkdir(TARGET, { recursive: true });
  for (const name of await readdir(TARGET)) {
    await rm(new URL(name, TARGET));
  }
  let total = 0;
  // The page comes last: its time says when all was built.
  for (const [name, content] of [...files].sort(
    ([a], [b]) => Number(a === "index.html") - Number(b === "index.html"),
  )) {
    const compressed = gzipSync(content, { level: 9 });
    total += compressed.length;
    await writeFile(new URL(`${name}.gz`, TARGET), compressed);
    await writeFile(new URL(name, TARGET), content);
  }
  if (total > MOST) {
    throw new Error(`The page has ${total} bytes compressed, more than ${MOST}.`);
  }
  console.error(`The console is built: ${Math.ceil(total / 1000)} KB over the wire.`);
}
