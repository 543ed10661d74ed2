// A unified diff, as the daemon gives it, as lines to be shown. Pure, linear.

export interface DiffLine {
  kind: "same" | "added" | "removed" | "gap" | "note";
  text: string;
}

const KINDS: Record<string, DiffLine["kind"]> = { "+": "added", "-": "removed", " ": "same" };

/** Returns the lines of a unified diff but for the two of its header; between its parts there is a gap. */
export function diffLines(diff: string): DiffLine[] {
  const lines: DiffLine[] = [];
  for (const line of diff.replace(/\n$/, "").split("\n").slice(2)) {
    const kind = KINDS[line[0] ?? ""];
    if (kind) {
      lines.push({ kind, text: line.slice(1) });
    } else if (!line.startsWith("@@ ")) {
      lines.push({ kind: "note", text: line.replace(/^\\ /, "") });
    } else if (lines.length) {
      lines.push({ kind: "gap", text: "" });
    }
  }
  return lines;
}
