// The terminal of a shell as it is: watched, and taken over by a person who may.
import { useEffect, useRef, useState } from "preact/hooks";
import { verb } from "./api.ts";
import { CommandLine } from "./command.tsx";
import { duration, ending, firstLine } from "./format.ts";
import { store, useStore } from "./store.ts";
import { TEXT } from "./text.ts";
import { onTheme } from "./theme.ts";
import type { Run, Screen } from "./types.ts";
import { TerminalView } from "./xterm.ts";

const REPLAY = 262_144;
const FIRST_RETRY = 500;
const LONGEST_RETRY = 5000;

type Message =
  | ({ type: "run" } & Run)
  | { type: "state"; state: string }
  | { type: "resize"; rows: number; cols: number }
  | { type: "error"; code: string; detail: string };

interface Connected {
  view: TerminalView;
  send: (message: object | Uint8Array) => boolean;
}

export function Live({ session }: { session: string }) {
  const { model, observer, phase } = useStore();
  const host = useRef<HTMLDivElement>(null);
  const connected = useRef<Connected | null>(null);
  const [there, setThere] = useState(true);
  const [typing, setTyping] = useState(false);
  const typingNow = useRef(false);
  typingNow.current = typing;
  const shell = model.shells.get(session);
  const run = model.current(session);
  const state = shell?.state ?? "available";

  useEffect(() => {
    if (phase !== "open") {
      return;
    }
    const link = connect(host.current as HTMLDivElement, session, setThere, () => typingNow.current);
    connected.current = link;
    return () => {
      connected.current = null;
      link.close();
    };
  }, [session, phase]);

  const takeOver = (wanted: boolean) => {
    const link = connected.current;
    setTyping(wanted);
    if (link) {
      link.view.terminal.options.disableStdin = !wanted;
      link.view.terminal.options.cursorBlink = wanted;
      if (wanted) {
        link.view.terminal.focus();
      }
    }
  };
  useEffect(() => {
    const onKey = (event: CustomEvent<string>) => {
      if (event.detail === "take" && !observer) {
        takeOver(true);
      } else if (event.detail === "hand") {
        takeOver(false);
      }
    };
    document.addEventListener("console-key", onKey as EventListener);
    return () => document.removeEventListener("console-key", onKey as EventListener);
  });

  const fit = async () => {
    const size = connected.current?.view.fullSize();
    if (size) {
      await store.attempt(async (api) => {
        await api.ask("POST", verb(session, "resize"), { json: size });
        connected.current?.view.resize(size.rows, size.cols);
      });
    }
  };
  const why = observer ? TEXT.observerWhy : undefined;
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
              <button type="button" class="strong" disabled={observer} title={why} onClick={() => takeOver(true)}>
                {TEXT.takeOver}
              </button>
            )}
            <button
              type="button"
              disabled={observer}
              title={why}
              onClick={() => connected.current?.send({ type: "signal", signal: "INT" })}
            >
              {TEXT.interrupt}
            </button>
            <button
              type="button"
              class="danger"
              disabled={observer}
              title={why}
              onClick={() => store.attempt((api) => api.ask("POST", verb(session, "kill")))}
            >
              {TEXT.kill}
            </button>
          </>
        )}
        {state === "available" && session === "main" && (
          <button
            type="button"
            class="strong"
            disabled={observer}
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
            disabled={observer}
            title={why}
            onClick={() => store.attempt((api) => api.ask("POST", verb(session, "recycle")))}
          >
            {TEXT.recycleShell}
          </button>
        )}
        {state === "ready" && <CommandLine session={session} disabled={observer} why={why} />}
        {(state === "ready" || state === "busy") && !observer && (
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

interface Link extends Connected {
  close: () => void;
}

/** Keeps a terminal connected until it is closed; `told` hears whether it is. */
function connect(host: HTMLElement, session: string, told: (there: boolean) => void, typing: () => boolean): Link {
  const view = new TerminalView(host);
  const encoder = new TextEncoder();
  let socket: WebSocket | null = null;
  let shown: string | null = null;
  let closed = false;
  let retry = FIRST_RETRY;
  let timer = 0;

  const send = (message: object | Uint8Array) => {
    if (socket?.readyState !== WebSocket.OPEN) {
      return false;
    }
    socket.send(message instanceof Uint8Array ? (message as Uint8Array<ArrayBuffer>) : JSON.stringify(message));
    return true;
  };
  view.terminal.onData((data) => typing() && send(encoder.encode(data)));
  view.terminal.onBinary((data) => typing() && send(Uint8Array.from(data, (each) => each.charCodeAt(0))));
  const stopColours = onTheme(() => view.recolour());

  const onRun = (run: Run) => {
    if (run.status === "running") {
      if (shown !== run.run_id) {
        shown = run.run_id;
        void view.write(heading(run));
      }
    } else if (shown === run.run_id) {
      shown = null;
      void view.write(footing(run));
    }
  };
  const onMessage = (event: MessageEvent) => {
    if (typeof event.data !== "string") {
      void view.write(new Uint8Array(event.data));
      return;
    }
    const message = JSON.parse(event.data) as Message;
    if (message.type === "run") {
      onRun(message);
    } else if (message.type === "resize") {
      view.resize(message.rows, message.cols);
    } else if (message.type === "error") {
      store.say(TEXT.failed(message.detail));
    }
  };
  const open = async () => {
    const api = store.api;
    if (closed || !api) {
      return;
    }
    view.terminal.reset();
    shown = null;
    await before(view, session);
    if (closed) {
      return;
    }
    socket = api.terminal(session, `replay=${REPLAY}${store.observer ? "&watch=true" : ""}`);
    socket.onopen = () => {
      retry = FIRST_RETRY;
      told(true);
    };
    socket.onmessage = onMessage;
    socket.onclose = () => {
      if (!closed) {
        told(false);
        timer = window.setTimeout(open, retry);
        retry = Math.min(2 * retry, LONGEST_RETRY);
      }
    };
  };
  void open();
  return {
    view,
    send,
    close: () => {
      closed = true;
      clearTimeout(timer);
      stopColours();
      socket?.close();
      view.dispose();
    },
  };
}

/** Sets the size of the shell's terminal, and shows how its last command ended where none runs. */
async function before(view: TerminalView, session: string): Promise<void> {
  const api = store.api;
  if (!api) {
    return;
  }
  try {
    const screen = await api.json<Screen>("GET", verb(session, "screen"));
    view.resize(screen.rows, screen.cols);
    const last = store.model.newest(session);
    if (!store.model.current(session) && last) {
      await view.write(heading(last));
      await writeEnd(view, last);
      await view.write(footing(last));
    }
  } catch {
    // Nothing has been run yet, or the connection is gone, which the socket will tell.
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
  return `\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1l\x1b[?2004l\x1b[?25h\x1b[r\x1b[9999;1H\x1b[0m\r\n${line}\x1b[0m\r\n\r\n`;
}
