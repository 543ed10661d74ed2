// At a glance: what the shell does, for how long, where, as whom, and what that costs.
import { useEffect, useState } from "preact/hooks";
import { clock, megabytes, shortPath, title, toneOfState } from "./format.ts";
import { store, useStore } from "./store.ts";
import { TEXT } from "./text.ts";
import { flipTheme } from "./theme.ts";
import type { Run, Screen } from "./types.ts";

const HIGH = 85;

export function Header() {
  const { model, metadata, observer, session, phase } = useStore(true);
  const shell = model.shells.get(session);
  const run = model.current(session);
  const now = performance.now();
  const waits = run?.awaiting_input ?? false;
  const state = shell?.state ?? "available";
  const tone = phase === "open" ? toneOfState(state, waits) : "plain";
  const word = phase === "open" ? (waits ? TEXT.waiting : TEXT.states[state]) : "–";
  useTab(
    phase === "open"
      ? waits
        ? "waiting"
        : state === "unrecoverable"
          ? "dead"
          : state === "busy"
            ? "busy"
            : "idle"
      : "lost",
    run,
  );
  const samples = model.usage.get(session) ?? [];
  const most = metadata?.limits.cpu_percent || (metadata?.cpus ?? 1) * 100;
  const room = metadata?.limits.memory_mb || metadata?.memory_mb || 1;
  const cpu = samples.at(-1)?.cpu_percent ?? 0;
  const memory = samples.at(-1)?.memory_mb ?? 0;
  return (
    <header class="top">
      <h1>
        {TEXT.name} <span class="faint">·</span> <span class="session">{session}</span>
      </h1>
      <span class={`state ${tone}`} role="status">
        <span class="dot" aria-hidden="true" />
        {word}
        {run && <time>{clock(model.elapsed(run, now))}</time>}
      </span>
      {waits && run ? <Waits run={run} /> : <Doing run={run} />}
      <span class="where mono" title={shell?.working_directory ?? ""}>
        {shortPath(shell?.working_directory ?? "", 36)}
      </span>
      <span class="who mono">{metadata && `${metadata.user}@${location.hostname}`}</span>
      <Graph
        label={TEXT.cpu}
        told={TEXT.cpuOf(Math.round(cpu), Math.round(most))}
        values={samples.map((each) => (100 * each.cpu_percent) / most)}
        shown={samples.length ? `${Math.round(cpu)} %` : "–"}
      />
      <Graph
        label={TEXT.memory}
        told={TEXT.memoryOf(megabytes(memory), megabytes(room))}
        values={samples.map((each) => (100 * each.memory_mb) / room)}
        shown={samples.length ? megabytes(memory) : "–"}
        most={megabytes(room)}
      />
      <span class="buttons">
        {observer && (
          <span class="badge" title={TEXT.observerWhy}>
            {TEXT.observer}
          </span>
        )}
        <button
          type="button"
          class="icon"
          title={TEXT.help}
          aria-label={TEXT.help}
          onClick={() => store.set({ help: true })}
        >
          ?
        </button>
        <button type="button" class="icon" title={TEXT.theme} aria-label={TEXT.theme} onClick={flipTheme}>
          <svg viewBox="0 0 16 16" width="15" height="15" aria-hidden="true">
            <circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="1.5" />
            <path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" />
          </svg>
        </button>
        <button type="button" class="icon" title={TEXT.forget} aria-label={TEXT.forget} onClick={() => store.leave()}>
          <svg viewBox="0 0 16 16" width="15" height="15" aria-hidden="true">
            <path d="M6.5 2.5h-4v11h4M10 5l3 3-3 3M12.5 8H6" fill="none" stroke="currentColor" stroke-width="1.5" />
          </svg>
        </button>
      </span>
    </header>
  );
}

function Doing({ run }: { run: Run | null }) {
  return <span class="doing">{run ? title(run) : ""}</span>;
}

/** What a command waits for: the line in which its cursor stands. */
function Waits({ run }: { run: Run }) {
  const [prompt, setPrompt] = useState("");
  useEffect(() => {
    let current = true;
    const path = `/runs/${encodeURIComponent(run.run_id)}/screen`;
    store.api?.json<Screen>("GET", path).then(
      (screen) => current && setPrompt((screen.lines[screen.cursor.row] ?? "").trim().slice(0, 160)),
      () => undefined, // the connection tells for itself that it is lost
    );
    return () => {
      current = false;
    };
  }, [run]);
  return (
    <span class="doing waits">
      {TEXT.waitsFor} <b class="mono">{prompt || title(run)}</b>
    </span>
  );
}

interface GraphProps {
  label: string;
  told: string;
  values: number[];
  shown: string;
  most?: string;
}

function Graph({ label, told, values, shown, most }: GraphProps) {
  const width = 56;
  const height = 18;
  const steps = 29;
  const recent = values.slice(-steps - 1);
  const place = (value: number, index: number) =>
    `${(width - ((recent.length - 1 - index) * width) / steps).toFixed(1)},${(height - 1 - (Math.min(100, value) / 100) * (height - 2)).toFixed(1)}`;
  const line = recent.map(place).join(" ");
  const high = (values.at(-1) ?? 0) >= HIGH;
  return (
    <span class={`graph ${high ? "high" : ""}`} title={told}>
      <span class="faint">{label}</span>
      <svg width={width} height={height} role="img" aria-label={told}>
        <line x1="0" x2={width} y1={height - 0.5} y2={height - 0.5} class="base" />
        {recent.length > 1 && <polyline points={line} />}
      </svg>
      <span class="figure">
        {shown}
        {most && <span class="faint"> / {most}</span>}
      </span>
    </span>
  );
}

/** The title and the icon of the tab say how it is when the page is not seen. */
function useTab(icon: string, run: Run | null) {
  const doing = run ? `${run.awaiting_input ? "❚❚" : "●"} ${title(run).slice(0, 60)} – ` : "";
  useEffect(() => {
    document.title = `${doing}${TEXT.name}`;
    const link = document.getElementById("icon") as HTMLLinkElement;
    const href = `/console/icon-${icon}.svg`;
    if (link.getAttribute("href") !== href) {
      link.setAttribute("href", href);
    }
  }, [icon, doing]);
}
