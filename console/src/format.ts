// Figures and ends of runs in a person's words. Pure.
import { TEXT } from "./text.ts";
import type { Run, ShellState } from "./types.ts";

export type Tone = "good" | "bad" | "busy" | "wait" | "plain";

/** `0.02 s`, `3.1 s`, `42 s`, `1:05`, `2:03:04`. */
export function duration(seconds: number): string {
  if (seconds < 60) {
    return `${seconds < 1 ? seconds.toFixed(2) : seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  }
  return clock(seconds);
}

/** `00:42`, `12:05`, `2:03:04`. */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (value: number) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return hours ? `${hours}:${rest}` : rest;
}

/** Bytes or characters, as `812 B`, `4.2 KB`, `104 MB`. */
export function size(count: number): string {
  let value = count;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (value < 1000 || unit === "GB") {
      return `${unit === "B" || value >= 100 ? Math.round(value) : value.toFixed(1)} ${unit}`;
    }
    value /= 1000;
  }
  return "";
}

export function megabytes(value: number): string {
  return value >= 10_000 ? `${(value / 1024).toFixed(1)} GB` : `${Math.round(value)} MB`;
}

export function timeOfDay(stamp: string): string {
  const time = new Date(stamp);
  return Number.isNaN(time.getTime()) ? "" : time.toLocaleTimeString([], { hour12: false });
}

/** What became of a run, in a word or two; nothing where it went well. */
export function ending(run: Run): string {
  if (run.status === "running") {
    return run.awaiting_input ? TEXT.waiting : "";
  }
  if (run.cause === "exit") {
    return run.exit_code ? TEXT.exit(run.exit_code) : "";
  }
  if (run.cause === "signal" && run.signal !== null) {
    return TEXT.signal(run.signal);
  }
  return TEXT.causes[run.cause ?? ""] ?? run.cause ?? run.status;
}

export function toneOf(run: Run): Tone {
  if (run.status === "running") {
    return run.awaiting_input ? "wait" : "busy";
  }
  return run.status === "completed" && run.cause === "exit" && run.exit_code === 0 ? "good" : "bad";
}

/** A sign that does not need colour to be understood. */
export function sign(run: Run): string {
  if (run.status === "running") {
    return run.awaiting_input ? "❚❚" : "●";
  }
  if (toneOf(run) === "good") {
    return "✓";
  }
  return run.status === "completed" && run.cause === "exit" ? "✗" : "☠";
}

export function toneOfState(state: ShellState, waits: boolean): Tone {
  if (state === "busy") {
    return waits ? "wait" : "busy";
  }
  return state === "ready" ? "good" : state === "unrecoverable" ? "bad" : "plain";
}

/** The first line of what a person would call a run: the agent's description, else the command. */
export function title(run: Run): string {
  return firstLine(run.description || run.command);
}

export function firstLine(text: string): string {
  const line = text.trimStart().split("\n", 1)[0] ?? "";
  return text.trim().length > line.length ? `${line.trimEnd()} …` : line;
}

/** The end of a path, for where there is little room. */
export function shortPath(path: string, most = 32): string {
  if (path.length <= most) {
    return path;
  }
  const tail = path.slice(-most);
  const slash = tail.indexOf("/");
  return `…${slash > 0 ? tail.slice(slash) : tail}`;
}

export function fileName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}
