// The terminal of a shell as it is: watched, and taken over by a person who may.
import { useEffect, useRef, useState } from "preact/hooks";
import { verb, withQuery } from "./api.ts";
import { CommandLine } from "./command.tsx";
import { duration, ending, firstLine, size } from "./format.ts";
import { store, useStore } from "./store.ts";
import { TEXT } from "./text.ts";
import { onTheme } from "./theme.ts";
import type { Run, Screen } from "./types.ts";
import { TerminalView } from "./xterm.ts";

const REPLAY = 262_144;
const FIRST_RETRY = 500;
const LONGEST_RETRY = 5000;
const MOST_WAITING = 524_288; // bytes to be drawn: more than the scrollback holds of usual lines
const LONGEST_WORD = 30_000; // ms that what a person says may take: a kill waits for the command's own end
const REMEASURE = 3000; // ms: a shell that runs one quick command after the other is not asked each time

type Message =
  | ({ type: "run" } & Run)
  | { type: "state"; state: string }
  | { type: "gap"; stream: string; dropped: number }
  | { type: "error"; code: string; detail: string };

type End = { type: "signal"; signal: string; run_id: string } | { type: "kill"; run_id: string };

interface Link {
  view: TerminalView;
  /** Takes the keyboard, or gives it back; with a command that is run first, tells when that has begun. */
  take: (wanted: boolean, command?: string, onBegun?: () => void) => void;
  /** Ends a run as the person at the terminal, so that whoever reads the result knows of them. */
  end: (message: End) => void;
  close: () => void;
}

export function Live({ session }: { session: string }) {
  const { model, observer, phase } = useStore();
  const host = useRef<HTMLDivElement>(null);
  const connected = useRef<Link | null>(null);
  /** What stands in the command line: kept here, as that is not shown while a command runs. */
  const [text, setText] = useState("");
  /** Whether this person has begun the last command, and so goes on when it is over. */
  const own = useRef(false);
  const [there, setThere] = useState(true);
  const [typing, setTyping] = useState(false);
  /** Whether there was a connection once: where it is lost, what was shown stays until there is a new one. */
  const [opened, setOpened] = useState(false);
  const off = observer || phase !== "open";
  const shell = model.shells.get(session);
  const run = model.current(session);
  const state = shell?.state ?? "available";

  useEffect(() => setOpened((before) => before || phase === "open"), [phase]);
  useEffect(() => {
    if (!opened) {
      return;
    }
    const link = connect(host.current as HTMLDivElement, session, setThere, setTyping);
    connected.current = link;
    return () => {
      connected.current = null;
      setTyping(false);
      link.close();
    };
  }, [session, opened]);

  useEffect(() => {
    if (own.current && !typing && state === "ready") {
      own.current = false;
      host.current?.parentElement?.querySelector<HTMLInputElement>(".command input")?.focus();
    }
  }, [typing, state]);
  const takeOver = (wanted: boolean) => connected.current?.take(wanted);
  useEffect(() => {
    const onKey = (event: CustomEvent<string>) => {
      if (event.detail === "take" && !off) {
        takeOver(true);
      } else if (event.detail === "hand") {
        takeOver(false);
      }
    };
    document.addEventListener("console-key", onKey as EventListener);
    return () => document.removeEventListener("console-key", onKey as EventListener);
  });

  const runIt = (command: string) => {
    connected.current?.take(true, command, () => {
      own.current = true;
      setText((now) => (now === command ? "" : now));
    });
  };
  const fit = async () => {
    const wanted = connected.current?.view.fullSize();
    if (wanted) {
      await store.attempt(async (api) => {
        await api.ask("POST", verb(session, "resize"), { json: wanted });
        connected.current?.view.resize(wanted.rows, wanted.cols);
      });
    }
  };
  const why = observer ? TEXT.observerWhy : off ? TEXT.lost : undefined;
  /** Ends the run that is shown: the one that goes on when the click arrives may be the agent's next. */
  const kill = () => run && connected.current?.end({ type: "kill", run_id: run.run_id });
  const interrupt = () => run && connected.current?.end({ type: "signal", signal: "INT", run_id: run.run_id });
  return (
    <div class={`live ${typing ? "taken" : ""}`}>
      <div class="screen" ref={host} role="region" aria-label={TEXT.terminalOf(session)} tabIndex={-1} />
      {!there && phase === "open" && <p class="over">{TEXT.noTerminal}</p>}
      <div class="controls">
        {state === "busy" && (
          <>
            {typing ? (
              <button type="button" class="strong" onClick={() => takeOver(false)}>
                {TEXT.handBack}
              </button>
            ) : (
              <button type="button" class="strong" disabled={off} title={why} onClick={() => takeOver(true)}>
                {TEXT.takeOver}
              </button>
            )}
            <button type="button" disabled={off || !run} title={why} onClick={interrupt}>
              {TEXT.interrupt}
            </button>
            <button type="button" class="danger" disabled={off || !run} title={why} onClick={kill}>
              {TEXT.kill}
            </button>
          </>
        )}
        {state === "available" && session === "main" && (
          <button
            type="button"
            class="strong"
            disabled={off}
            title={why}
            onClick={() => store.attempt((api) => api.ask("POST", "/startup"))}
          >
            {TEXT.startShell}
          </button>
        )}
        {state === "unrecoverable" && (
          <button
            type="button"
            class="strong"
            disabled={off}
            title={why}
            onClick={() => store.attempt((api) => api.ask("POST", verb(session, "recycle")))}
          >
            {TEXT.recycleShell}
          </button>
        )}
        {state === "ready" && (
          <CommandLine session={session} text={text} onText={setText} disabled={off} why={why} onRun={runIt} />
        )}
        {(state === "ready" || state === "busy") && !off && (
          <button type="button" class="quiet" onClick={fit}>
            {TEXT.fit}
          </button>
        )}
        <span class={`who ${typing || run?.typed_by_person ? "person" : ""}`} role="status">
          {state === "busy" ? (typing ? TEXT.youType : run?.typed_by_person ? TEXT.otherTypes : TEXT.agentTypes) : ""}
          {state === "available" ? TEXT.notStarted : state === "unrecoverable" ? TEXT.dead : ""}
        </span>
      </div>
    </div>
  );
}

/**
 * Keeps a terminal connected until it is closed; `told` hears whether it is, `taken` whether a person has the keyboard.
 *
 * What is shown comes from a connection that only watches. To type there is a second one, for as long as a person has the
 * keyboard: while it is there the terminal has an echo, which an agent must not find in its output for nothing.
 */
function connect(
  host: HTMLElement,
  session: string,
  told: (there: boolean) => void,
  taken: (typing: boolean) => void,
): Link {
  const view = new TerminalView(host);
  const { terminal } = view;
  const encoder = new TextEncoder();
  let socket: WebSocket | null = null;
  let keyboard: WebSocket | null = null;
  let shown: string | null = null;
  let measured = 0;
  /** The run that had ended when the connection began, and whether the connection tells of it all the same. */
  let before: string | null = null;
  let again = false;
  /** Output, and what is to be done when all before it is drawn. */
  const waiting: (Uint8Array | (() => Promise<unknown>))[] = [];
  let waitingSize = 0;
  let writing = false;
  let leftOut = 0;
  let closed = false;
  let retry = FIRST_RETRY;
  let timer = 0;

  const onRun = async (run: Run) => {
    const begins = shown !== run.run_id; // one that was quick is told of when it is over
    if (begins) {
      await view.write(heading(run));
    }
    shown = run.status === "running" ? run.run_id : null;
    if (run.status !== "running") {
      await view.write(footing(run));
    } else if (begins && performance.now() - measured > REMEASURE) {
      measured = performance.now();
      void measure(view, session);
    }
  };
  /** Writes output as fast as it can be drawn; of what comes faster the newest is kept, and that is said. */
  const show = (next: Uint8Array | (() => Promise<unknown>)) => {
    waiting.push(next);
    if (typeof next !== "function") {
      waitingSize += next.length;
    }
    for (let index = 0; waitingSize > MOST_WAITING && index < waiting.length - 1; ) {
      const oldest = waiting[index];
      if (oldest && typeof oldest !== "function") {
        waiting.splice(index, 1);
        waitingSize -= oldest.length;
        leftOut += oldest.length;
      } else {
        index++;
      }
    }
    if (!writing) {
      writing = true;
      void drain();
    }
  };
  const drain = async () => {
    for (let next = waiting.shift(); next && !closed; next = waiting.shift()) {
      if (leftOut) {
        const told = `\x1b[0m\r\n\x1b[2m${TEXT.leftOut(size(leftOut))}\x1b[0m\r\n`;
        leftOut = 0;
        await view.write(told);
      }
      if (typeof next === "function") {
        await next();
      } else {
        waitingSize -= next.length;
        await view.write(next);
      }
    }
    writing = false;
  };
  const onMessage = (event: MessageEvent) => {
    if (closed) {
      return;
    }
    if (typeof event.data !== "string") {
      if (!again) {
        show(new Uint8Array(event.data));
      }
      return;
    }
    const message = JSON.parse(event.data) as Message;
    if (message.type === "run") {
      again = message.run_id === before;
      if (!again) {
        show(() => onRun(message));
      }
    } else if (message.type === "gap") {
      show(() => view.write(`\r\n\x1b[2m${TEXT.droppedBytes(size(message.dropped))}\x1b[0m\r\n`));
    }
  };
  const open = async () => {
    if (closed || !store.api) {
      return;
    }
    measured = performance.now();
    await measure(view, session);
    if (closed || !store.api) {
      return;
    }
    const mine = store.api.terminal(session, `replay=${REPLAY}&watch=true`);
    socket = mine;
    let shownSoFar = Promise.resolve();
    mine.onopen = () => {
      retry = FIRST_RETRY;
      waiting.length = waitingSize = leftOut = 0;
      view.clear();
      shown = null;
      again = false;
      told(true);
      // What comes waits until the end of the run before is shown: that has been asked for when nothing new can be missed.
      shownSoFar = lastRun(view, session).then((runId) => {
        before = runId;
      });
    };
    mine.onmessage = (event) => {
      shownSoFar = shownSoFar.then(() => onMessage(event));
    };
    socket.onclose = () => {
      if (!closed) {
        told(false);
        timer = window.setTimeout(open, retry);
        retry = Math.min(2 * retry, LONGEST_RETRY);
      }
    };
  };
  const type = (data: Uint8Array<ArrayBuffer>) => {
    if (keyboard?.readyState === WebSocket.OPEN) {
      keyboard.send(data);
    }
  };
  const giveBack = () => {
    const was = keyboard;
    keyboard = null;
    was?.close();
    terminal.options.disableStdin = true;
    terminal.options.cursorBlink = false;
    if (!closed) {
      taken(false);
    }
  };
  const take = (wanted: boolean, command?: string, onBegun?: () => void) => {
    if (!wanted || !store.api) {
      giveBack();
      return;
    }
    if (keyboard) {
      return;
    }
    const mine = store.api.terminal(session, "replay=0");
    keyboard = mine;
    let begun = false;
    mine.onopen = () => command !== undefined && mine.send(JSON.stringify({ type: "run", command }));
    mine.onmessage = (event) => {
      const message = typeof event.data === "string" ? (JSON.parse(event.data) as Message) : null;
      if (message?.type === "error") {
        store.say(TEXT.failed(message.detail));
        if (!begun) {
          giveBack();
        }
      } else if (message?.type === "run" && message.status === "running" && isOf(message, command)) {
        begun = true;
        onBegun?.();
        terminal.options.disableStdin = false; // now what is typed has a command to go to
        terminal.options.cursorBlink = true;
        terminal.focus();
        taken(true);
      } else if (!begun && command !== undefined) {
        return; // it tells of the command before, or of one that the agent has begun meanwhile
      } else if (message?.type === "run" || (message?.type === "state" && message.state !== "busy")) {
        giveBack(); // what was meant for this command is not for the agent's next one
      }
    };
    mine.onclose = () => {
      if (keyboard === mine) {
        if (!begun) {
          store.say(TEXT.lost);
        }
        giveBack();
      }
    };
  };
  const end = (message: End) => {
    if (keyboard?.readyState === WebSocket.OPEN) {
      keyboard.send(JSON.stringify(message));
    } else if (store.api) {
      const mine = store.api.terminal(session, "replay=0");
      const timer = window.setTimeout(() => mine.close(), LONGEST_WORD);
      mine.onclose = (event) => {
        clearTimeout(timer);
        if (!event.wasClean) {
          store.say(TEXT.lost);
        }
      };
      mine.onopen = () => mine.send(JSON.stringify(message));
      mine.onmessage = (event) => {
        const told = typeof event.data === "string" ? (JSON.parse(event.data) as Message) : null;
        if (told?.type === "error") {
          store.say(TEXT.failed(told.detail));
        }
        if (told?.type === "error" || (told?.type === "run" && told.status !== "running")) {
          mine.close();
        }
      };
    }
  };
  terminal.onData((data) => type(encoder.encode(data)));
  terminal.onBinary((data) => type(Uint8Array.from(data, (each) => each.charCodeAt(0))));
  const stopColours = onTheme(() => view.recolour());
  void open();
  return {
    view,
    take,
    end,
    close: () => {
      closed = true;
      clearTimeout(timer);
      stopColours();
      giveBack();
      socket?.close();
      view.dispose();
    },
  };
}

/** Whether a run is that of a command which a person has just sent, of which the daemon tells the beginning; any is of none. */
function isOf(run: Run, command?: string): boolean {
  return command === undefined || (run.typed_by_person === true && command.startsWith(run.command));
}

/** Gives the terminal the size that the shell's has. */
async function measure(view: TerminalView, session: string): Promise<void> {
  try {
    const screen = await store.api?.json<Screen>("GET", verb(session, "screen"));
    if (screen) {
      view.resize(screen.rows, screen.cols);
    }
  } catch {
    // Nothing has been run yet, or the connection is gone, which the socket will tell.
  }
}

/** Shows how the last command ended, where none runs; returns which one. */
async function lastRun(view: TerminalView, session: string): Promise<string | null> {
  try {
    const [last] = (await store.api?.json<Run[]>("GET", withQuery("/runs", { session_id: session, limit: 1 }))) ?? [];
    if (!last || last.status === "running") {
      return null;
    }
    await view.write(heading(last));
    await writeEnd(view, last);
    await view.write(footing(last));
    return last.run_id;
  } catch {
    return null; // it is kept no more, or the connection is gone, which the socket will tell
  }
}

/** Writes the end of what a run has written, as it was written. */
export async function writeEnd(view: TerminalView, run: Run): Promise<void> {
  const path = `/runs/${encodeURIComponent(run.run_id)}`;
  const told = await store.api?.json<Run>("GET", `${path}?max_output=1`);
  const cursor = Math.max(0, (told?.cursor ?? 0) - REPLAY);
  const answer = await store.api?.ask("GET", `${path}/output?format=raw&cursor=${cursor}&limit=${REPLAY}`, {
    headers: { Accept: "text/plain" },
  });
  if (answer) {
    await view.write(new Uint8Array(await answer.arrayBuffer()));
  }
}

/** A text of a stranger without what a terminal would take for more than text. */
function plain(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}]/gu, "�");
}

function heading(run: Run): string {
  return `\r\x1b[0m\x1b[2m$\x1b[0m \x1b[1m${plain(firstLine(run.command)).slice(0, 500)}\x1b[0m\r\n`;
}

function footing(run: Run): string {
  const end = ending(run);
  const took = duration(run.duration);
  const line = end ? `\x1b[31m${plain(end)}\x1b[0m\x1b[2m · ${took}` : `\x1b[2m✓ ${took}`;
  // What a program has left behind: another screen, colours, a hidden cursor, the mouse.
  return `\x1b[?47l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1l\x1b[?2004l\x1b[?25h\x1b7\x1b[r\x1b8\x1b[0m\r\n${line}\x1b[0m\r\n\r\n`;
}
