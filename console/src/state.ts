// What is known of the daemon, and what each event makes of it. Pure but for the time, which it is given.
import type { DaemonEvent, FileChange, Port, Run, Shell, Usage } from "./types.ts";

const MOST_SAMPLES = 60;
const MOST_CHANGES = 100; // as many as may come between two looks of whoever shows a directory

export class Model {
  shells = new Map<string, Shell>();
  runs = new Map<string, Run>();
  /** When a run that goes on has begun, by this page's clock: the daemon's may be another. */
  begun = new Map<string, number>();
  usage = new Map<string, Usage[]>();
  ports = new Map<string, Port>();
  /** The newest changes of files, the newest first: they tell what is to be looked at anew. */
  changes: FileChange[] = [];
  #ordered: Run[] | null = null;

  /** All runs, newest first. */
  get ordered(): Run[] {
    this.#ordered ??= [...this.runs.values()].sort((a, b) => (a.started_at < b.started_at ? 1 : -1));
    return this.#ordered;
  }

  addRun(run: Run, now: number): void {
    const known = this.runs.get(run.run_id);
    if (known && known.status !== "running" && run.status === "running") {
      return; // a listing that was asked for before the run ended
    }
    this.runs.set(run.run_id, run);
    this.#ordered = null;
    if (run.status === "running") {
      this.begun.set(run.run_id, this.begun.get(run.run_id) ?? now - run.duration * 1000);
    } else {
      this.begun.delete(run.run_id);
    }
  }

  removeRun(runId: string): void {
    this.runs.delete(runId);
    this.begun.delete(runId);
    this.#ordered = null;
  }

  /** The run that a shell is busy with. */
  current(sessionId: string): Run | null {
    for (const runId of this.begun.keys()) {
      const run = this.runs.get(runId);
      if (run?.session_id === sessionId) {
        return run;
      }
    }
    return null;
  }

  /** The newest run of a shell. */
  newest(sessionId: string): Run | null {
    return this.ordered.find((run) => run.session_id === sessionId) ?? null;
  }

  elapsed(run: Run, now: number): number {
    const begun = this.begun.get(run.run_id);
    return begun === undefined ? run.duration : Math.max(0, now - begun) / 1000;
  }

  apply(event: DaemonEvent, now: number): void {
    switch (event.type) {
      case "snapshot":
        this.#begin(event.data, now);
        break;
      case "state": {
        const shell = this.shells.get(event.data.session_id);
        if (shell) {
          this.shells.set(shell.session_id, { ...shell, state: event.data.state });
        }
        break;
      }
      case "run_started":
      case "run_awaiting_input":
      case "run_warning":
      case "run_ended":
        this.#note(event.data, now);
        break;
      case "session_opened":
        if (!this.shells.has(event.data.session_id)) {
          this.shells.set(event.data.session_id, newShell(event.data.session_id));
        }
        break;
      case "session_closed":
        this.shells.delete(event.data.session_id);
        this.usage.delete(event.data.session_id);
        break;
      case "file_changed":
        this.changes = [event.data, ...this.changes].slice(0, MOST_CHANGES);
        break;
      case "port_opened":
        this.ports.set(portKey(event.data), event.data);
        break;
      case "port_closed":
        this.ports.delete(portKey(event.data));
        break;
      case "resources":
        for (const usage of event.data.shells) {
          this.usage.set(usage.session_id, [...(this.usage.get(usage.session_id) ?? []), usage].slice(-MOST_SAMPLES));
        }
        break;
    }
  }

  #begin(data: { shells: Shell[]; runs: Run[] }, now: number): void {
    this.shells = new Map(data.shells.map((shell) => [shell.session_id, shell]));
    this.ports = new Map();
    const going = new Set(data.runs.map((run) => run.run_id));
    for (const runId of [...this.begun.keys()]) {
      if (!going.has(runId)) {
        this.removeRun(runId); // what became of it the next listing says
      }
    }
    for (const run of data.runs) {
      this.addRun(run, now);
    }
  }

  #note(run: Run, now: number): void {
    this.addRun(run, now);
    const shell = this.shells.get(run.session_id);
    if (shell) {
      const directory = run.working_directory ?? shell.working_directory;
      this.shells.set(shell.session_id, { ...shell, working_directory: directory, last_run_id: run.run_id });
    }
  }
}

function portKey(port: Port): string {
  return `${port.port} ${port.session_id}`;
}

function newShell(sessionId: string): Shell {
  return {
    session_id: sessionId,
    state: "ready",
    working_directory: null,
    run: null,
    last_run_id: null,
    created_at: "",
    expires_at: null,
  };
}

export type Filter = "all" | "running" | "failed" | "waiting";

/** Returns whether a person who searches for `words` among runs of a kind means this one. */
export function matches(run: Run, filter: Filter, sessionId: string | null, words: string): boolean {
  if (sessionId !== null && run.session_id !== sessionId) {
    return false;
  }
  if (filter === "running" && run.status !== "running") {
    return false;
  }
  if (filter === "waiting" && !(run.status === "running" && run.awaiting_input)) {
    return false;
  }
  if (filter === "failed" && (run.status === "running" || (run.cause === "exit" && run.exit_code === 0))) {
    return false;
  }
  if (!words.trim()) {
    return true;
  }
  const text = `${run.description ?? ""}\n${run.command}\n${run.run_id}`.toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
