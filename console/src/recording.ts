// A recording in the form asciicast v2: what was written when. Pure.

export interface Recording {
  rows: number;
  cols: number;
  /** Times in seconds, growing, and what was written or (`r`) the size then. */
  events: { at: number; kind: "o" | "r"; data: string }[];
}

const MOST_EVENTS = 500_000;

/** Reads a recording, also one that is still being made: a line that is not whole is left out. Throws for another form. */
export function parseRecording(text: string): Recording {
  const lines = text.split("\n");
  const head = JSON.parse(lines[0] ?? "");
  if (head?.version !== 2 || !(head.width > 0) || !(head.height > 0)) {
    throw new Error("This is no recording.");
  }
  const events: Recording["events"] = [];
  let last = 0;
  for (const line of lines.slice(1, MOST_EVENTS)) {
    try {
      const [at, kind, data] = JSON.parse(line);
      if (typeof at === "number" && typeof data === "string" && (kind === "o" || kind === "r")) {
        last = Math.max(last, at);
        events.push({ at: last, kind, data });
      }
    } catch {
      // Half a line: it goes on being recorded.
    }
  }
  return { rows: Math.min(500, head.height), cols: Math.min(500, head.width), events };
}

/** Returns the recording with no pause longer than `most` seconds. */
export function withoutIdle(recording: Recording, most: number): Recording {
  let cut = 0;
  let before = 0;
  const events = recording.events.map((event) => {
    cut += Math.max(0, event.at - before - most);
    before = event.at;
    return { ...event, at: event.at - cut };
  });
  return { ...recording, events };
}

export function lengthOf(recording: Recording): number {
  return recording.events.at(-1)?.at ?? 0;
}

/** Returns the index of the first event after `at`. */
export function indexAfter(recording: Recording, at: number): number {
  let low = 0;
  let high = recording.events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((recording.events[middle]?.at ?? 0) <= at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}
