// One run, or what happens now: the terminal, the screen, the output, the recording, what it did to files.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api.ts";
import { duration, ending, megabytes, sign, size, timeOfDay, title, toneOf } from "./format.ts";
import { type Change, listChanges } from "./history.ts";
import { Live, writeEnd } from "./live.tsx";
import { Output } from "./output.tsx";
import { Player } from "./player.tsx";
import { store, type Tab, useStore } from "./store.ts";
import { TEXT } from "./text.ts";
import { onTheme } from "./theme.ts";
import type { Run, Screen } from "./types.ts";
import { TerminalView } from "./xterm.ts";

const TABS = Object.keys(TEXT.tabs) as Tab[];

export function View() {
  const { model, session, runId, tab, beside, phase } = useStore(true);
  const chosen = runId === null ? null : (model.runs.get(runId) ?? null);
  const now = chosen ?? model.current(session) ?? model.newest(session);
  const live = chosen === null || (chosen.status === "running" && model.shells.has(chosen.session_id));
  const sessions = [...model.shells.keys()];
  return (
    <section class="view" aria-label={TEXT.panes.view}>
      <div class="bar tabs">
        <div role="tablist" aria-label={TEXT.panes.view}>
          {TABS.map((each) => (
            <button
              type="button"
              role="tab"
              key={each}
              id={`tab-${each}`}
              aria-selected={tab === each}
              aria-controls="panel"
              tabIndex={tab === each ? 0 : -1}
              onClick={() => store.set({ tab: each })}
              onKeyDown={(event) => {
                const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
                const next = by && TABS[(TABS.indexOf(each) + by + TABS.length) % TABS.length];
                if (next) {
                  store.set({ tab: next });
                  document.getElementById(`tab-${next}`)?.focus();
                }
              }}
            >
              {TEXT.tabs[each]}
            </button>
          ))}
        </div>
        {runId === null && phase === "open" ? (
          <span class="badge live-badge">
            <span class="dot" aria-hidden="true" /> {TEXT.live}
          </span>
        ) : runId === null ? null : (
          <button type="button" class="back" onClick={() => store.choose(null)}>
            {TEXT.backToLive}
          </button>
        )}
        {sessions.length > 1 && (
          <button type="button" class="beside" aria-pressed={beside} onClick={() => store.set({ beside: !beside })}>
            {TEXT.sideBySide}
          </button>
        )}
      </div>
      {now && <About run={now} />}
      <div
        class={`panel ${beside && live && tab === "terminal" ? "many" : ""}`}
        id="panel"
        role="tabpanel"
        aria-labelledby={`tab-${tab}`}
      >
        {phase !== "open" && !model.shells.size ? (
          <p class="empty">{TEXT.connecting}</p>
        ) : tab === "terminal" ? (
          live ? (
            beside && runId === null ? (
              sessions.slice(0, 6).map((each) => (
                <div class="one" key={each}>
                  <h3>{each}</h3>
                  <Live session={each} />
                </div>
              ))
            ) : (
              <Live key={chosen?.session_id ?? session} session={chosen?.session_id ?? session} />
            )
          ) : (
            <Ended key={chosen.run_id} run={chosen} />
          )
        ) : !now ? (
          <p class="empty">{TEXT.noRuns}</p>
        ) : tab === "screen" ? (
          <ScreenPicture key={now.run_id} run={now} />
        ) : tab === "output" ? (
          <Output key={`${now.run_id} ${now.status}`} run={now} />
        ) : tab === "recording" ? (
          <Player key={now.run_id} run={now} />
        ) : (
          <Changes key={`${now.run_id} ${now.status}`} run={now} />
        )}
      </div>
    </section>
  );
}

function About({ run }: { run: Run }) {
  const [open, setOpen] = useState(false);
  const [copied, setCopied] = useState(false);
  const end = ending(run);
  const facts: [string, string][] = [
    [TEXT.started, timeOfDay(run.started_at)],
    [TEXT.duration, duration(store.model.elapsed(run, performance.now()))],
    [TEXT.sizeLabel, size(run.original_stdout_size + run.original_stderr_size)],
    [TEXT.directory, run.working_directory ?? ""],
    [TEXT.cpuTime, duration(run.usage.cpu_seconds)],
    [TEXT.peak, megabytes(run.usage.peak_memory_mb)],
  ];
  if (run.background_pids.length) {
    facts.push([TEXT.left, TEXT.leftCount(run.background_pids.length)]);
  }
  const copy = async () => {
    await navigator.clipboard?.writeText(run.command);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class={`about-run ${toneOf(run)}`}>
      <button type="button" class="command-line" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span class="sign" aria-hidden="true">
          {sign(run)}
        </span>
        <span class={run.description ? "" : "mono"}>{title(run).slice(0, 300)}</span>
        {end && <span class="end">{end}</span>}
        <span class="faint">{duration(store.model.elapsed(run, performance.now()))}</span>
      </button>
      {(run.error || run.warnings?.length) && (
        <p class="error">{[run.error, ...(run.warnings ?? [])].filter(Boolean).join(" ")}</p>
      )}
      {open && (
        <div class="facts">
          <pre class="mono">{run.command}</pre>
          <dl>
            {facts
              .filter(([, value]) => value)
              .map(([name, value]) => (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd class="mono">{value}</dd>
                </div>
              ))}
          </dl>
          <button type="button" onClick={copy}>
            {copied ? TEXT.copied : TEXT.copyCommand}
          </button>
        </div>
      )}
    </div>
  );
}

/** The terminal of a run that has ended, as it was. */
function Ended({ run }: { run: Run }) {
  const host = useRef<HTMLDivElement>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const view = new TerminalView(host.current as HTMLDivElement);
    const stopColours = onTheme(() => view.recolour());
    let current = true;
    const load = async () => {
      try {
        const screen = await store.api?.json<Screen>("GET", `/runs/${encodeURIComponent(run.run_id)}/screen`);
        if (current && screen) {
          view.resize(screen.rows, screen.cols);
          await writeEnd(view, run);
        }
      } catch (error) {
        setProblem(error instanceof ApiError && error.status !== 404 ? error.message : TEXT.runGone);
      }
    };
    void load();
    return () => {
      current = false;
      stopColours();
      view.dispose();
    };
  }, [run.run_id]);
  return (
    <div class="live">
      {problem && <p class="empty">{problem}</p>}
      <div
        class="screen"
        ref={host}
        role="region"
        aria-label={TEXT.terminalOf(title(run).slice(0, 100))}
        tabIndex={-1}
      />
    </div>
  );
}

/** The screen as the daemon draws it: what the agent is told when it asks for it. */
function ScreenPicture({ run }: { run: Run }) {
  const [picture, setPicture] = useState<{ url: string; text: string } | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    const { signal } = abort;
    const path = `/runs/${encodeURIComponent(run.run_id)}/screen`;
    let url = "";
    const load = async () => {
      let at = -1;
      while (!signal.aborted && store.api) {
        const query = at < 0 ? "" : `?wait=20s&at=${at}`;
        const told = await store.api.json<Screen & { at: number; status: string }>("GET", path + query, { signal });
        const svg = await store.api.ask("GET", path, { headers: { Accept: "image/svg+xml" }, signal });
        const next = URL.createObjectURL(await svg.blob());
        setPicture({ url: next, text: told.lines.join("\n").trimEnd() });
        URL.revokeObjectURL(url);
        url = next;
        at = told.at;
        if (told.status !== "running") {
          return;
        }
      }
    };
    load().catch((error) => !signal.aborted && setProblem(error instanceof ApiError ? error.message : TEXT.noScreen));
    return () => {
      abort.abort();
      URL.revokeObjectURL(url);
    };
  }, [run.run_id, run.status]);
  return (
    <div class="picture" tabIndex={0} role="region" aria-label={TEXT.tabs.screen}>
      {picture ? (
        <img src={picture.url} alt={TEXT.screenAlt(picture.text)} />
      ) : (
        <p class="empty">{problem || TEXT.loading}</p>
      )}
    </div>
  );
}

function Changes({ run }: { run: Run }) {
  const [told, setTold] = useState<Run | null>(null);
  const [meanwhile, setMeanwhile] = useState<Change[]>([]);
  useEffect(() => {
    void store.attempt(async (api) => {
      const now = await api.json<Run>("GET", `/runs/${encodeURIComponent(run.run_id)}?max_output=1`);
      const end = new Date(Date.parse(now.started_at) + 1000 * now.duration).toISOString();
      setTold(now); // it is shown also where the changes of others cannot be listed
      const known = now.changes ? [] : await listChanges();
      setMeanwhile(known.filter((each) => each.at >= now.started_at && each.at <= end));
    });
  }, [run.run_id]);
  if (!told) {
    return <p class="empty">{TEXT.loading}</p>;
  }
  if (!told.changes) {
    return (
      <>
        <p class="empty">{told.changes_error ?? TEXT.changesUnknown}</p>
        {meanwhile.length > 0 && <h3 class="meanwhile">{TEXT.changedMeanwhile}</h3>}
        <ChangedFiles changes={meanwhile.map((each) => ({ path: each.path, kind: each.operation, size: each.size }))} />
      </>
    );
  }
  if (!told.changes.length) {
    return <p class="empty">{TEXT.noChanges}</p>;
  }
  return <ChangedFiles changes={told.changes} more={told.changes_truncated} />;
}

function ChangedFiles({ changes, more }: { changes: { path: string; kind: string; size: number }[]; more?: boolean }) {
  return (
    <ul class="changes">
      {changes.map((change, index) => (
        <li key={`${index} ${change.path}`} class={change.kind}>
          <span class="kind">{change.kind}</span>
          <button
            type="button"
            class="mono"
            disabled={change.kind.startsWith("delete")}
            onClick={() => document.dispatchEvent(new CustomEvent("console-file", { detail: change.path }))}
          >
            {change.path}
          </button>
          <span class="faint">{size(change.size)}</span>
        </li>
      ))}
      {more && <li>…</li>}
    </ul>
  );
}
