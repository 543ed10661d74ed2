// The output of a run as text, of any size: a window of its log, which is read by range where a person scrolls.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { size } from "./format.ts";
import { firstLineStart, linesOf } from "./plain.ts";
import { store } from "./store.ts";
import { TEXT } from "./text.ts";
import type { Run } from "./types.ts";
import { visibleRows } from "./window.ts";

const PIECE = 262_144; // bytes that a read takes
const MOST_PIECES = 8; // that are kept: the rest is read again
const HEIGHT = 19; // of a line, as style.css has it

interface Piece {
  from: number;
  to: number;
  lines: string[];
}

interface Page {
  pieces: Piece[];
  total: number;
  ended: boolean;
}

export function Output({ run }: { run: Run }) {
  const [stream, setStream] = useState<"stdout" | "stderr">("stdout");
  const [wrap, setWrap] = useState(false);
  const [page, setPage] = useState<Page | null>(null);
  const [place, setPlace] = useState({ top: 0, seen: 600 });
  const reader = useRef<Reader | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const following = useRef<boolean | null>(null);
  const path = `/runs/${encodeURIComponent(run.run_id)}`;

  useEffect(() => {
    const current = new Reader(path, stream, setPage);
    reader.current = current;
    void current.end();
    return () => current.close();
  }, [path, stream]);

  const lines = useMemo(() => page?.pieces.flatMap((piece) => piece.lines) ?? [], [page?.pieces]);
  const rows = visibleRows(lines.length, HEIGHT, place.top, place.seen, 20);
  useLayoutEffect(() => {
    if (page?.pieces.length && following.current === null) {
      following.current = run.status === "running" || (page.pieces[0]?.from ?? 0) > 0;
    }
    if (following.current && box.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  }, [page]);

  const onScroll = () => {
    const element = box.current as HTMLDivElement;
    setPlace({ top: element.scrollTop, seen: element.clientHeight });
    const below = element.scrollHeight - element.scrollTop - element.clientHeight;
    following.current = below < HEIGHT && !!page && (page.pieces.at(-1)?.to ?? 0) >= page.total;
    if (element.scrollTop < 200) {
      void reader.current?.earlier((added) => {
        element.scrollTop += added * HEIGHT;
      });
    } else if (below < 200) {
      void reader.current?.later((removed) => {
        element.scrollTop -= removed * HEIGHT;
      });
    }
  };
  const from = page?.pieces[0]?.from ?? 0;
  const to = page?.pieces.at(-1)?.to ?? 0;
  return (
    <div class="output">
      <div class="bar">
        {run.streams !== "merged" &&
          (["stdout", "stderr"] as const).map((each) => (
            <button type="button" key={each} aria-pressed={stream === each} onClick={() => setStream(each)}>
              {TEXT[each]}
            </button>
          ))}
        <button type="button" onClick={() => reader.current?.begin().then(() => box.current?.scrollTo({ top: 0 }))}>
          {TEXT.toTop}
        </button>
        <button
          type="button"
          onClick={() => {
            following.current = true;
            void reader.current?.end();
          }}
        >
          {TEXT.toEnd}
        </button>
        <button type="button" aria-pressed={wrap} onClick={() => setWrap(!wrap)}>
          {TEXT.wrap}
        </button>
        <button
          type="button"
          onClick={() => download(`${path}/output?format=raw&stream=${stream}`, `${run.run_id}.log`)}
        >
          {TEXT.download}
        </button>
        {page && page.total > 0 && <span class="faint">{TEXT.showing(size(from), size(to), size(page.total))}</span>}
      </div>
      <div
        class={`lines mono ${wrap ? "wrap" : ""}`}
        ref={box}
        onScroll={onScroll}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label={TEXT.tabs.output}
      >
        {!page && <p class="empty">{TEXT.loading}</p>}
        {page && page.total === 0 && <p class="empty">{page.ended ? TEXT.noOutput : TEXT.noOutputYet}</p>}
        {wrap ? (
          <div class="all">{lines.slice(-3000).join("\n")}</div>
        ) : (
          <>
            <div style={{ height: `${rows.before}px` }} />
            {lines.slice(rows.first, rows.last).map((line, index) => (
              <div class="line" key={rows.first + index}>
                {line || " "}
              </div>
            ))}
            <div style={{ height: `${rows.after}px` }} />
          </>
        )}
      </div>
    </div>
  );
}

/** Reads pieces of one log, and follows its end. */
class Reader {
  #page: Page = { pieces: [], total: 0, ended: false };
  #abort = new AbortController();
  #busy = false;

  constructor(
    readonly path: string,
    readonly stream: string,
    readonly show: (page: Page) => void,
  ) {
    void this.#follow();
  }

  close(): void {
    this.#abort.abort();
  }

  /** Shows the beginning. */
  begin(): Promise<void> {
    return this.#once(async () => {
      this.#set([await this.#read(0, PIECE)]);
    });
  }

  /** Shows the end. */
  end(): Promise<void> {
    return this.#once(async () => {
      await this.#look(0);
      const from = Math.max(0, this.#page.total - PIECE);
      this.#set([await this.#read(from, this.#page.total - from, from > 0)]);
    });
  }

  async earlier(added: (lines: number) => void): Promise<void> {
    const first = this.#page.pieces[0];
    if (!first || first.from === 0) {
      return;
    }
    await this.#once(async () => {
      const from = Math.max(0, first.from - PIECE);
      const piece = await this.#read(from, first.from - from, from > 0);
      if (piece.to > piece.from) {
        this.#set([piece, ...this.#page.pieces].slice(0, MOST_PIECES));
        added(piece.lines.length);
      }
    });
  }

  async later(removed: (lines: number) => void): Promise<void> {
    const last = this.#page.pieces.at(-1);
    if (!last || last.to >= this.#page.total) {
      return;
    }
    await this.#once(async () => {
      const dropped = this.#add(await this.#read(last.to, PIECE));
      removed(dropped);
    });
  }

  /** Adds what comes behind; returns how many lines at the top have gone for it. */
  #add(piece: Piece): number {
    const last = this.#page.pieces.at(-1);
    if (last && piece.lines.length) {
      const joined = `${last.lines.at(-1) ?? ""}${piece.lines[0] ?? ""}`;
      const pieces = [
        ...this.#page.pieces.slice(0, -1),
        { ...last, lines: last.lines.slice(0, -1) },
        { ...piece, lines: [joined, ...piece.lines.slice(1)] },
      ];
      if (last.to - last.from + piece.to - piece.from < PIECE) {
        pieces.splice(-2, 2, {
          from: last.from,
          to: piece.to,
          lines: [...last.lines.slice(0, -1), joined, ...piece.lines.slice(1)],
        });
      }
      const gone = pieces.slice(0, -MOST_PIECES).reduce((sum, each) => sum + each.lines.length, 0);
      this.#set(pieces.slice(-MOST_PIECES));
      return gone;
    }
    return 0;
  }

  /** Reads bytes of the log; out of its middle, from the first whole line on. */
  async #read(from: number, count: number, whole = false): Promise<Piece> {
    if (count <= 0) {
      return { from, to: from, lines: [] };
    }
    const query = new URLSearchParams({ format: "raw", stream: this.stream, cursor: `${from}`, limit: `${count}` });
    const answer = await store.api?.ask("GET", `${this.path}/output?${query}`, {
      headers: { Accept: "text/plain" },
      signal: this.#abort.signal,
    });
    if (!answer) {
      return { from, to: from, lines: [] };
    }
    const bytes = new Uint8Array(await answer.arrayBuffer());
    const dropped = Number(answer.headers.get("X-Dropped") ?? 0);
    const start = whole && !dropped ? firstLineStart(bytes) : 0;
    const lines = linesOf(new TextDecoder().decode(bytes.subarray(start)));
    const to = Number(answer.headers.get("X-Next-Cursor") ?? from + bytes.length);
    return { from: from + start, to, lines: dropped ? [TEXT.droppedBytes(size(dropped)), ...lines] : lines };
  }

  /** Asks how much there is by now, and waits so long for more. */
  async #look(wait: number): Promise<void> {
    const query = new URLSearchParams({
      stream: this.stream,
      cursor: `${this.#page.total}`,
      limit: "1",
      format: "raw",
      wait: `${wait}s`,
    });
    const signal = this.#abort.signal;
    const answer = await store.api?.json<{ eof: boolean; status: string }>("GET", `${this.path}/output?${query}`, {
      signal,
    });
    const told = await store.api?.json<Run>("GET", `${this.path}?max_output=1`, { signal });
    const total = this.stream === "stdout" ? (told?.cursor ?? 0) : (told?.original_stderr_size ?? 0);
    this.#page = { ...this.#page, total, ended: answer?.status !== "running" };
  }

  async #follow(): Promise<void> {
    while (!this.#abort.signal.aborted && !this.#page.ended) {
      const before = this.#page.total;
      try {
        await this.#look(20);
      } catch {
        return; // the connection tells for itself; the view is made anew with it
      }
      const last = this.#page.pieces.at(-1);
      if (last && last.to === before && this.#page.total > before) {
        // Where more has come than is read at a time, a person at the end wants the new end.
        await (this.#page.total - before > 4 * PIECE
          ? this.end()
          : this.#once(async () => void this.#add(await this.#read(last.to, PIECE))));
      } else {
        this.show(this.#page);
      }
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
  }

  #set(pieces: Piece[]): void {
    this.#page = { ...this.#page, pieces };
    this.show(this.#page);
  }

  async #once(action: () => Promise<void>): Promise<void> {
    if (!this.#busy) {
      this.#busy = true;
      await store.attempt(action);
      this.#busy = false;
    }
  }
}

/** Saves what a path answers as a file. */
export async function download(path: string, name: string): Promise<void> {
  await store.attempt(async (api) => {
    const answer = await api.ask("GET", path, { headers: { Accept: "text/plain" } });
    const url = URL.createObjectURL(await answer.blob());
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  });
}
