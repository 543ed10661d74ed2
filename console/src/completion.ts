// Completion of paths in a command line. Pure.

/** Returns the word that ends at `at`: what bash would take for one, as far as a person types it. */
export function wordAt(text: string, at: number): string {
  return /(?:\\.|[^\s"'|&;<>()$`\\])*$/.exec(text.slice(0, at))?.[0] ?? "";
}

/** Returns as much as all names that begin with `begin` have in common, quoted for bash, and those names. */
export function complete(begin: string, names: readonly string[]): { text: string; offers: string[] } {
  const wanted = begin.replace(/\\(.)/g, "$1");
  const offers = names.filter((name) => name.startsWith(wanted)).sort();
  let common = offers[0] ?? wanted;
  for (const name of offers) {
    while (!name.startsWith(common)) {
      common = common.slice(0, -1);
    }
  }
  const done = offers.length === 1 && !common.endsWith("/") ? " " : "";
  return { text: common.replace(/[^\w./@%+=:,~-]/gu, "\\$&") + done, offers };
}
