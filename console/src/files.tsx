// Files: a tree, one of them, and what was changed through the API, with diffs and undo.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, withQuery } from "./api.ts";
import { diffLines } from "./diff.ts";
import { fileName, size, timeOfDay } from "./format.ts";
import { commentSign, highlight } from "./highlight.ts";
import { type Change, listChanges, same } from "./history.ts";
import { download } from "./output.tsx";
import { store, useStore } from "./store.ts";
import { TEXT } from "./text.ts";

const MOST_SHOWN = 262_144;

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

async function load(path: string): Promise<Shown> {
  const headers = { Accept: "*/*", Range: `bytes=0-${MOST_SHOWN - 1}` };
  let answer: Response;
  try {
    answer = (await store.api?.ask("GET", withQuery("/files/raw", { path }), { headers })) as Response;
  } catch (error) {
    if (error instanceof ApiError && error.status === 416) {
      return { path, text: "", size: 0, cut: false }; // an empty file has no first byte
    }
    throw error;
  }
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const whole = Number(/\/(\d+)$/.exec(answer.headers.get("Content-Range") ?? "")?.[1] ?? bytes.length);
  const text = bytes.includes(0) ? null : new TextDecoder().decode(bytes);
  return { path, text, size: whole, cut: whole > bytes.length };
}

export function Files() {
  const { model, metadata, observer, phase } = useStore();
  const [shown, setShown] = useState<Shown | null>(null);
  const [problem, setProblem] = useState("");
  const root = metadata?.workspace_directory ?? "/";
  const [top, setTop] = useState(root);
  const [changes, setChanges] = useState<Change[]>([]);
  const [looked, setLooked] = useState<Change | null>(null);
  const newest = model.changes[0];
  const path = shown?.path ?? null;
  const listing = useRef({ going: false, wanted: false });

  const open = async (wanted: string) => {
    setLooked(null);
    try {
      setShown(await load(wanted));
      setProblem("");
    } catch (error) {
      setShown(null);
      setProblem(error instanceof ApiError ? error.message : TEXT.lost);
    }
  };
  /** Lists the changes anew: once more for all that come while they are listed, not once for each. */
  const list = async () => {
    const { current } = listing;
    current.wanted = true;
    if (current.going) {
      return;
    }
    current.going = true;
    while (current.wanted) {
      current.wanted = false;
      try {
        const told = await listChanges();
        setChanges(told);
        setLooked((was) => told.find((each) => same(each, was)) ?? null);
      } catch {
        // The connection tells for itself that it is lost.
      }
    }
    current.going = false;
  };
  useEffect(() => {
    const onFile = (event: CustomEvent<string>) => {
      store.set({ pane: "files" });
      void open(event.detail);
    };
    document.addEventListener("console-file", onFile as EventListener);
    return () => document.removeEventListener("console-file", onFile as EventListener);
  }, []);
  useEffect(() => {
    let current = true;
    if (phase === "open") {
      void list();
      if (newest && newest.path === path) {
        // Another file may have been opened when the answer comes: that one stays.
        const put = (now: Shown | null) => current && setShown((was) => (was?.path === newest.path ? now : was));
        load(newest.path).then(put, (error) => error instanceof ApiError && put(null)); // deleted, or not to be read
      }
    }
    return () => {
      current = false;
    };
  }, [newest, phase]);

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
      {looked ? (
        <ChangeView
          change={looked}
          newest={changes.find((each) => each.path === looked.path)?.at === looked.at}
          onOpen={open}
          observer={observer}
        />
      ) : (
        <FileView
          shown={shown}
          problem={problem}
          undoable={changes.some((each) => each.path === path)}
          observer={observer}
        />
      )}
      <History changes={changes} looked={looked} onLook={setLooked} />
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

async function undo(path: string): Promise<void> {
  if (await store.attempt((api) => api.ask("POST", "/files/undo", { json: { path } }))) {
    store.say(TEXT.undone(fileName(path)));
  }
}

interface FileProps {
  shown: Shown | null;
  problem: string;
  undoable: boolean;
  observer: boolean;
}

function FileView({ shown, problem, undoable, observer }: FileProps) {
  if (!shown) {
    return (
      <div class="file">
        <p class="empty">{problem || TEXT.filesHint}</p>
      </div>
    );
  }
  const comment = commentSign(fileName(shown.path));
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
        {undoable && (
          <button
            type="button"
            disabled={observer}
            title={observer ? TEXT.observerWhy : TEXT.undoLast}
            onClick={() => undo(shown.path)}
          >
            {TEXT.undo}
          </button>
        )}
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

interface ChangeProps {
  change: Change;
  newest: boolean;
  onOpen: (path: string) => void;
  observer: boolean;
}

/** What a change has made of a file. */
function ChangeView({ change, newest, onOpen, observer }: ChangeProps) {
  const signs = { added: "+", removed: "−", same: " ", gap: "⋯", note: "" };
  return (
    <div class="file">
      <div class="bar">
        <h3 class="mono" title={change.path}>
          <bdi>{fileName(change.path)}</bdi> <span class="faint">{change.operation}</span>
        </h3>
        <button type="button" disabled={change.operation === "delete"} onClick={() => onOpen(change.path)}>
          {TEXT.openFile}
        </button>
        <button
          type="button"
          disabled={observer || !newest}
          title={observer ? TEXT.observerWhy : newest ? TEXT.undoLast : TEXT.undoFirst}
          onClick={() => undo(change.path)}
        >
          {TEXT.undo}
        </button>
      </div>
      <div class="code diff mono" tabIndex={0} role="region" aria-label={TEXT.diffOf(fileName(change.path))}>
        {change.diff ? (
          <div class="all">
            {diffLines(change.diff).map((line, index) => (
              <div class={line.kind} key={index}>
                <span class="sign">{signs[line.kind]}</span>
                {line.text}
              </div>
            ))}
          </div>
        ) : (
          <p class="empty">{TEXT.noDiff(change.operation === "delete" ? null : size(change.size))}</p>
        )}
      </div>
    </div>
  );
}

interface HistoryProps {
  changes: readonly Change[];
  looked: Change | null;
  onLook: (change: Change) => void;
}

function History({ changes, looked, onLook }: HistoryProps) {
  return (
    <div class="history">
      <div class="bar">
        <h2>{TEXT.history}</h2>
      </div>
      {!changes.length && <p class="empty">{TEXT.noHistory}</p>}
      <ul>
        {changes.map((change) => (
          <li key={`${change.at} ${change.path}`}>
            <button
              type="button"
              class={same(change, looked) ? "chosen" : ""}
              aria-pressed={same(change, looked)}
              title={change.path}
              onClick={() => onLook(change)}
            >
              <bdi class="mono">{fileName(change.path)}</bdi>
              <span class="faint">{change.operation}</span>
              <span class="faint time">{timeOfDay(change.at).slice(0, 5)}</span>
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
