// The difference of two texts by lines. Pure, and bounded: where it would take long, the changed part counts as replaced.

export interface DiffLine {
  kind: "same" | "added" | "removed" | "gap";
  text: string;
}

const CONTEXT = 3;
const MOST_CELLS = 4_000_000;

/** Returns the changed lines of two texts, with some around them. */
export function diff(before: string, after: string): DiffLine[] {
  const a = before === "" ? [] : before.replace(/\n$/, "").split("\n");
  const b = after === "" ? [] : after.replace(/\n$/, "").split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) {
    start++;
  }
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) {
    end++;
  }
  const same = (text: string): DiffLine => ({ kind: "same", text });
  const middle = changed(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return cut([...a.slice(0, start).map(same), ...middle, ...a.slice(a.length - end).map(same)]);
}

function changed(a: string[], b: string[]): DiffLine[] {
  const removed = (text: string): DiffLine => ({ kind: "removed", text });
  const added = (text: string): DiffLine => ({ kind: "added", text });
  if ((a.length + 1) * (b.length + 1) > MOST_CELLS) {
    return [...a.map(removed), ...b.map(added)];
  }
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width); // of the longest common subsequence of what is behind
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const here = i * width + j;
      common[here] =
        a[i] === b[j]
          ? (common[here + width + 1] ?? 0) + 1
          : Math.max(common[here + width] ?? 0, common[here + 1] ?? 0);
    }
  }
  const found: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    const here = i * width + j;
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push({ kind: "same", text: a[i++] as string });
      j++;
    } else if (i < a.length && (j === b.length || (common[here + width] ?? 0) >= (common[here + 1] ?? 0))) {
      found.push(removed(a[i++] as string));
    } else {
      found.push(added(b[j++] as string));
    }
  }
  return found;
}

function cut(lines: DiffLine[]): DiffLine[] {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, index) => {
    if (line.kind !== "same") {
      near.fill(1, Math.max(0, index - CONTEXT), index + CONTEXT + 1);
    }
  });
  const shown: DiffLine[] = [];
  lines.forEach((line, index) => {
    if (near[index]) {
      shown.push(line);
    } else if (shown.at(-1)?.kind !== "gap") {
      shown.push({ kind: "gap", text: "" });
    }
  });
  return shown.every((line) => line.kind === "gap") ? [] : shown;
}
