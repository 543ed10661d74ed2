// The one state of the page: the connection to the daemon, what is known of it, and what is chosen.
import { useEffect, useReducer } from "preact/hooks";
import { Api, ApiError, KEY, withQuery } from "./api.ts";
import { Model } from "./state.ts";
import { TEXT } from "./text.ts";
import type { DaemonEvent, Metadata, Run } from "./types.ts";

export type Phase = "key" | "connecting" | "open" | "lost" | "ended";
export type Tab = "terminal" | "screen" | "output" | "recording" | "changes";
export type Pane = "runs" | "view" | "files" | "ports";

const STORED = "shelld-key";
const PAGE = 500;
const FIRST_RETRY = 400;
const LONGEST_RETRY = 5000;
const NOTICE = 10_000; // ms that something is said for

class Store {
  phase: Phase = "key";
  api: Api | null = null;
  model = new Model();
  metadata: Metadata | null = null;
  observer = false;
  proxied = true;
  /** Why the key is asked for again, or nothing. */
  keyProblem = "";
  notice = "";
  session = "main";
  beside = false;
  /** The run that is looked at; null follows what happens. */
  runId: string | null = null;
  tab: Tab = "terminal";
  pane: Pane = "view";
  help = false;
  olderRuns: string | null = null;
  #listeners = new Set<() => void>();
  #frame = 0;
  #forgetNotice = 0;
  #abort: AbortController | null = null;

  /** Tells all that show something, once a frame; in a tab that is not seen frames do not come. */
  changed(): void {
    if (this.#frame) {
      return;
    }
    const tell = () => {
      this.#frame = 0;
      for (const listener of [...this.#listeners]) {
        listener();
      }
    };
    this.#frame = document.hidden ? window.setTimeout(tell, 50) : requestAnimationFrame(tell);
  }

  listen(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Takes the key out of the address, or out of this tab's memory. */
  begin(): void {
    const given = new URLSearchParams(location.hash.slice(1)).get("key");
    if (location.hash) {
      history.replaceState(null, "", location.pathname);
    }
    const key = given ?? sessionStorage.getItem(STORED);
    if (key) {
      this.enter(key);
    } else {
      this.changed();
    }
  }

  enter(key: string): void {
    if (!KEY.test(key)) {
      this.keyProblem = TEXT.keyShape;
      this.changed();
      return;
    }
    this.#abort?.abort();
    this.#abort = new AbortController();
    this.api = new Api(key);
    this.model = new Model();
    this.keyProblem = "";
    this.phase = "connecting";
    this.changed();
    void this.#follow(this.api, this.#abort.signal);
  }

  leave(problem = ""): void {
    this.#abort?.abort();
    sessionStorage.removeItem(STORED);
    this.api = null;
    this.phase = "key";
    this.keyProblem = problem;
    this.model = new Model();
    this.runId = null;
    this.session = "main";
    this.changed();
  }

  async #follow(api: Api, signal: AbortSignal): Promise<void> {
    let retry = FIRST_RETRY;
    let lastId: string | null = null;
    let entered = false;
    while (!signal.aborted) {
      try {
        await this.#look(api, signal);
        entered = true;
        sessionStorage.setItem(STORED, api.key);
        for await (const event of api.events("/events?resources=2s&ports=2s", lastId, signal)) {
          if (this.phase !== "open") {
            this.phase = "open";
            this.changed();
          }
          retry = FIRST_RETRY;
          if (event) {
            lastId = event.id ?? lastId;
            this.#apply({ type: event.event, data: JSON.parse(event.data) } as DaemonEvent);
          }
        }
        this.phase = "ended";
      } catch (error) {
        if (signal.aborted) {
          return;
        }
        if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
          const wrong = error.status === 401 ? (entered ? TEXT.keyGone : TEXT.keyWrong) : error.message;
          this.leave(wrong);
          return;
        }
        this.phase = this.phase === "ended" ? "ended" : "lost";
      }
      this.changed();
      await new Promise((resolve) => setTimeout(resolve, retry));
      retry = Math.min(2 * retry, LONGEST_RETRY);
    }
  }

  /** Asks for what events do not tell: whose key this is, what the machine has, the runs that are over. */
  async #look(api: Api, signal: AbortSignal): Promise<void> {
    this.metadata = await api.json<Metadata>("GET", "/metadata", { signal });
    try {
      await api.ask("GET", "/observers", { signal });
      this.observer = false;
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "observer_key")) {
        throw error;
      }
      this.observer = true;
    }
    await this.#list(api, null, signal);
  }

  async #list(api: Api, cursor: string | null, signal?: AbortSignal): Promise<void> {
    const query: Record<string, string | number> = cursor === null ? { limit: PAGE } : { limit: PAGE, cursor };
    const answer = await api.ask("GET", withQuery("/runs", query), { signal });
    this.olderRuns = answer.headers.get("X-Next-Cursor");
    const now = performance.now();
    for (const run of (await answer.json()) as Run[]) {
      this.model.addRun(run, now);
    }
    this.changed();
  }

  async listOlder(): Promise<void> {
    if (this.api && this.olderRuns !== null) {
      const cursor = this.olderRuns;
      this.olderRuns = null;
      await this.attempt((api) => this.#list(api, cursor));
    }
  }

  #apply(event: DaemonEvent): void {
    this.model.apply(event, performance.now());
    if (event.type === "gap" && this.api) {
      void this.attempt((api) => this.#list(api, null));
    }
    if (event.type === "session_closed" && event.data.session_id === this.session) {
      this.session = "main";
    }
    this.changed();
  }

  /** Does what a person has asked for; a refusal is shown to them. Returns whether it was done. */
  async attempt(action: (api: Api) => Promise<unknown>): Promise<boolean> {
    if (!this.api) {
      return false;
    }
    try {
      await action(this.api);
      return true;
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") {
        return false;
      }
      this.say(error instanceof ApiError ? TEXT.failed(error.message) : TEXT.lost);
      return false;
    }
  }

  say(text: string): void {
    this.notice = text;
    this.changed();
    clearTimeout(this.#forgetNotice);
    this.#forgetNotice = window.setTimeout(() => this.set({ notice: "" }), NOTICE);
  }

  choose(runId: string | null): void {
    this.runId = runId;
    const run = runId === null ? null : this.model.runs.get(runId);
    if (run && this.model.shells.has(run.session_id)) {
      this.session = run.session_id;
    }
    if (runId === null) {
      this.tab = "terminal";
    }
    this.pane = "view";
    this.changed();
  }

  chooseSession(sessionId: string): void {
    this.session = sessionId;
    this.choose(null);
  }

  set(changes: Partial<Pick<Store, "tab" | "pane" | "help" | "beside" | "notice">>): void {
    Object.assign(this, changes);
    this.changed();
  }
}

export const store = new Store();

/** Draws a component anew whenever something has changed, and each second where `ticking`. */
export function useStore(ticking = false): Store {
  const [, draw] = useReducer((count: number) => count + 1, 0);
  useEffect(() => store.listen(() => draw(0)), []);
  useEffect(() => {
    if (!ticking) {
      return;
    }
    const timer = setInterval(() => draw(0), 1000);
    return () => clearInterval(timer);
  }, [ticking]);
  return store;
}
