// Files: a tree, one of them, and what was changed through the API, with diffs and undo.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, withQuery } from "./api.ts";
import { type DiffLine, diff } from "./diff.ts";
import { fileName, size } from "./format.ts";
import { commentSign, highlight } from "./highlight.ts";
import { download } from "./output.tsx";
import type { KnownChange } from "./state.ts";
import { store, useStore } from "./store.ts";
import { TEXT } from "./text.ts";

const MOST_SHOWN = 262_144;
const MOST_KEPT = 200;

interface Entry {
  name: string;
  type: string;
  size: number | null;
}

interface Shown {
  path: string;
  text: string | null;
  size: number;
  cut: boolean;
}

/** Texts as they were last seen here, by path: what a diff is made from. */
const seen = new Map<string, string>();
/** Diffs of changes that were seen. */
const diffs = new WeakMap<KnownChange, DiffLine[]>();

async function load(path: string): Promise<Shown> {
  const headers = { Accept: "*/*", Range: `bytes=0-${MOST_SHOWN - 1}` };
  let answer: Response;
  try {
    answer = (await store.api?.ask("GET", withQuery("/files/raw", { path }), { headers })) as Response;
  } catch (error) {
    if (error instanceof ApiError && error.status === 416) {
      remember(path, "");
      return { path, text: "", size: 0, cut: false }; // an empty file has no first byte
    }
    throw error;
  }
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const whole = Number(/\/(\d+)$/.exec(answer.headers.get("Content-Range") ?? "")?.[1] ?? bytes.length);
  const text = bytes.includes(0) ? null : new TextDecoder().decode(bytes);
  if (text !== null && whole <= MOST_SHOWN) {
    remember(path, text);
  }
  return { path, text, size: whole, cut: whole > bytes.length };
}

function remember(path: string, text: string): void {
  seen.delete(path);
  seen.set(path, text);
  if (seen.size > MOST_KEPT) {
    seen.delete(seen.keys().next().value as string);
  }
}

export function Files() {
  const { model, metadata, observer } = useStore();
  const [shown, setShown] = useState<Shown | null>(null);
  const [problem, setProblem] = useState("");
  const root = metadata?.workspace_directory ?? "/";
  const [top, setTop] = useState(root);
  const newest = model.changes[0];
  const path = shown?.path ?? null;

  const open = async (wanted: string) => {
    try {
      setShown(await load(wanted));
      setProblem("");
    } catch (error) {
      setShown(null);
      setProblem(error instanceof ApiError ? error.message : TEXT.lost);
    }
  };
  useEffect(() => {
    const onFile = (event: CustomEvent<string>) => {
      store.set({ pane: "files" });
      void open(event.detail);
    };
    document.addEventListener("console-file", onFile as EventListener);
    return () => document.removeEventListener("console-file", onFile as EventListener);
  }, []);
  // What has changed is read at once: the next change of it is told with its diff.
  useEffect(() => {
    if (!newest || newest.operation === "delete" || newest.operation === "unpack") {
      return;
    }
    const before = newest.operation === "create" ? "" : seen.get(newest.path);
    load(newest.path).then(
      (now) => {
        if (before !== undefined && now.text !== null) {
          diffs.set(newest, diff(before, now.text));
        }
        if (now.path === path) {
          setShown(now);
        }
        store.changed();
      },
      () => undefined, // it has changed again, or is gone
    );
  }, [newest]);

  return (
    <section class="files" aria-label={TEXT.files}>
      <div class="tree-pane">
        <div class="bar">
          <h2>{TEXT.files}</h2>
          <button type="button" onClick={() => setTop(top.replace(/\/[^/]*$/, "") || "/")} disabled={top === "/"}>
            {TEXT.parent}
          </button>
          {top !== root && (
            <button type="button" onClick={() => setTop(root)}>
              {TEXT.root}
            </button>
          )}
        </div>
        <p class="path mono" title={top}>
          <bdi>{top}</bdi>
        </p>
        <ul class="tree" aria-label={TEXT.tree}>
          <Directory key={top} path={top} chosen={path} onOpen={open} disabled={observer} />
        </ul>
      </div>
      <FileView shown={shown} problem={problem} observer={observer} />
      <History chosen={path} onOpen={open} observer={observer} />
    </section>
  );
}

interface DirectoryProps {
  path: string;
  chosen: string | null;
  onOpen: (path: string) => void;
  disabled: boolean;
}

function Directory({ path, chosen, onOpen, disabled }: DirectoryProps) {
  const { model } = useStore();
  const [entries, setEntries] = useState<Entry[] | null>(null);
  const [problem, setProblem] = useState("");
  const [openNames, setOpenNames] = useState<ReadonlySet<string>>(new Set());
  const [over, setOver] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const below = (name: string) => `${path === "/" ? "" : path}/${name}`;
  const changed = model.changes.find((each) => each.path.startsWith(below("")));
  const ended = model.ordered.find((run) => run.status !== "running")?.run_id;

  useEffect(() => {
    let current = true;
    store.api?.json<{ entries: Entry[] }>("POST", "/files/view", { json: { path, hidden: true } }).then(
      (listed) => current && setEntries(sorted(listed.entries)),
      (error) => current && setProblem(error instanceof ApiError ? error.message : TEXT.lost),
    );
    return () => {
      current = false;
    };
  }, [path, changed, ended]);

  const send = async (files: FileList | null | undefined) => {
    for (const file of [...(files ?? [])]) {
      const target = withQuery("/files/raw", { path: below(file.name) });
      if (await store.attempt((api) => api.ask("PUT", target, { body: file }))) {
        store.say(TEXT.uploaded(file.name));
      }
    }
  };
  return (
    <li
      class={`directory ${over ? "over" : ""}`}
      onDragOver={(event) => {
        if (!disabled) {
          event.preventDefault();
          event.stopPropagation();
          setOver(true);
        }
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        event.stopPropagation();
        setOver(false);
        if (!disabled) {
          void send(event.dataTransfer?.files);
        }
      }}
    >
      <ul>
        {problem && <li class="empty">{problem}</li>}
        {entries?.length === 0 && <li class="empty">{TEXT.emptyDirectory}</li>}
        {entries?.slice(0, 2000).map((entry) =>
          entry.type === "directory" ? (
            <li key={entry.name}>
              <button
                type="button"
                aria-expanded={openNames.has(entry.name)}
                onClick={() => {
                  const next = new Set(openNames);
                  if (!next.delete(entry.name)) {
                    next.add(entry.name);
                  }
                  setOpenNames(next);
                }}
              >
                <span class="arrow" aria-hidden="true">
                  {openNames.has(entry.name) ? "▾" : "▸"}
                </span>
                <bdi>{entry.name}</bdi>
              </button>
              {openNames.has(entry.name) && (
                <ul>
                  <Directory path={below(entry.name)} chosen={chosen} onOpen={onOpen} disabled={disabled} />
                </ul>
              )}
            </li>
          ) : (
            <li key={entry.name}>
              <button
                type="button"
                class={chosen === below(entry.name) ? "chosen" : ""}
                aria-current={chosen === below(entry.name)}
                onClick={() => onOpen(below(entry.name))}
              >
                <bdi>{entry.name}</bdi>
                <span class="faint">{entry.size === null ? "" : size(entry.size)}</span>
              </button>
            </li>
          ),
        )}
      </ul>
      <span class="upload">
        <button
          type="button"
          class="quiet"
          disabled={disabled}
          title={disabled ? TEXT.observerWhy : TEXT.uploadHint}
          onClick={() => input.current?.click()}
        >
          {TEXT.upload} …
        </button>
        <input
          ref={input}
          type="file"
          multiple
          class="hidden"
          tabIndex={-1}
          aria-label={TEXT.upload}
          onChange={(event) => send(event.currentTarget.files)}
        />
      </span>
    </li>
  );
}

function sorted(entries: Entry[]): Entry[] {
  const rank = (entry: Entry) => (entry.type === "directory" ? 0 : 1);
  return [...entries].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
}

function FileView({ shown, problem, observer }: { shown: Shown | null; problem: string; observer: boolean }) {
  if (!shown) {
    return (
      <div class="file">
        <p class="empty">{problem || TEXT.filesHint}</p>
      </div>
    );
  }
  const comment = commentSign(fileName(shown.path));
  const undo = async () => {
    const done = await store.attempt((api) => api.ask("POST", "/files/undo", { json: { path: shown.path } }));
    if (done) {
      store.say(TEXT.undone(fileName(shown.path)));
    }
  };
  return (
    <div class="file">
      <div class="bar">
        <h3 class="mono" title={shown.path}>
          <bdi>{fileName(shown.path)}</bdi>
        </h3>
        <button
          type="button"
          onClick={() => download(withQuery("/files/raw", { path: shown.path }), fileName(shown.path))}
        >
          {TEXT.download}
        </button>
        <button type="button" disabled={observer} title={observer ? TEXT.observerWhy : undefined} onClick={undo}>
          {TEXT.undo}
        </button>
      </div>
      <div class="code mono" tabIndex={0} role="region" aria-label={fileName(shown.path)}>
        {shown.text === null && <p class="empty">{TEXT.binary(size(shown.size))}</p>}
        {shown.text === "" && <p class="empty">{TEXT.emptyFile}</p>}
        {shown.text
          ?.replace(/\n$/, "")
          .split("\n")
          .slice(0, 5000)
          .map((line, index) => (
            <div class="line" key={index}>
              <span class="number" aria-hidden="true">
                {index + 1}
              </span>
              {highlight(line, comment).map((token) =>
                token.kind === "plain" ? token.text : <span class={token.kind}>{token.text}</span>,
              )}
            </div>
          ))}
        {shown.cut && <p class="empty">{TEXT.cutAt(size(MOST_SHOWN))}</p>}
      </div>
    </div>
  );
}

function History({
  chosen,
  onOpen,
  observer,
}: {
  chosen: string | null;
  onOpen: (path: string) => void;
  observer: boolean;
}) {
  const { model } = useStore();
  const [open, setOpen] = useState<KnownChange | null>(null);
  return (
    <div class="history">
      <div class="bar">
        <h2>{TEXT.history}</h2>
      </div>
      {!model.changes.length && <p class="empty">{TEXT.noHistory}</p>}
      <ul>
        {model.changes.map((change) => (
          <li key={`${change.at} ${change.path}`} class={change.path === chosen ? "chosen" : ""}>
            <button
              type="button"
              aria-expanded={open === change}
              title={change.path}
              onClick={() => {
                setOpen(open === change ? null : change);
                onOpen(change.path);
              }}
            >
              <bdi class="mono">{fileName(change.path)}</bdi>
              <span class="faint">{TEXT.changedBy(change.operation, change.by)}</span>
            </button>
            {open === change && <Diff lines={diffs.get(change)} />}
            {open === change && (
              <button
                type="button"
                class="quiet"
                disabled={observer}
                title={observer ? TEXT.observerWhy : undefined}
                onClick={() => store.attempt((api) => api.ask("POST", "/files/undo", { json: { path: change.path } }))}
              >
                {TEXT.undo}
              </button>
            )}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Diff({ lines }: { lines: DiffLine[] | undefined }) {
  if (!lines) {
    return <p class="empty">{TEXT.diffUnknown}</p>;
  }
  const signs = { added: "+", removed: "−", same: " ", gap: "⋯" };
  return (
    <div class="diff mono" tabIndex={0} role="region" aria-label={TEXT.history}>
      {lines.map((line, index) => (
        <div class={line.kind} key={index}>
          {signs[line.kind]} {line.text}
        </div>
      ))}
    </div>
  );
}
