// The time line of commands: a list of which only what is seen is drawn, to search and to filter.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { duration, ending, sign, size, timeOfDay, title, toneOf } from "./format.ts";
import { type Filter, matches } from "./state.ts";
import { store, useStore } from "./store.ts";
import { TEXT } from "./text.ts";
import type { Run } from "./types.ts";
import { visibleRows } from "./window.ts";

const HEIGHT = 46; // of a row, as style.css has it

export function Runs() {
  const { model, runId, olderRuns } = useStore(true);
  const [words, setWords] = useState("");
  const [filter, setFilter] = useState<Filter>("all");
  const found = model.ordered.filter((run) => matches(run, filter, null, words));
  const list = useRef<HTMLDivElement>(null);
  const search = useRef<HTMLInputElement>(null);
  const [place, setPlace] = useState({ top: 0, seen: 600 });
  const rows = visibleRows(found.length, HEIGHT, place.top, place.seen);

  useLayoutEffect(() => {
    const element = list.current as HTMLDivElement;
    const measure = () => setPlace({ top: element.scrollTop, seen: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const chosen = found.findIndex((run) => run.run_id === runId);
  const step = (by: number) => {
    const next = found[Math.max(0, Math.min(found.length - 1, chosen < 0 ? 0 : chosen + by))];
    if (next) {
      store.choose(next.run_id);
      show(list.current, found.indexOf(next));
    }
  };
  useEffect(() => {
    const onKey = (event: CustomEvent<string>) => {
      if (event.detail === "search") {
        store.set({ pane: "runs" });
        search.current?.focus();
      } else if (event.detail === "next" || event.detail === "previous") {
        step(event.detail === "next" ? 1 : -1);
      }
    };
    document.addEventListener("console-key", onKey as EventListener);
    return () => document.removeEventListener("console-key", onKey as EventListener);
  });

  return (
    <section class="runs" aria-label={TEXT.runs}>
      <div class="bar">
        <h2>
          {TEXT.runs} <span class="count">{TEXT.countOf(found.length, model.ordered.length)}</span>
        </h2>
        <input
          ref={search}
          type="search"
          placeholder={`/ ${TEXT.search}`}
          aria-label={TEXT.search}
          value={words}
          onInput={(event) => setWords(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
        />
      </div>
      <fieldset class="filters">
        <legend class="hidden">{TEXT.search}</legend>
        {(Object.keys(TEXT.filters) as Filter[]).map((each) => (
          <button type="button" key={each} aria-pressed={filter === each} onClick={() => setFilter(each)}>
            {TEXT.filters[each]}
          </button>
        ))}
      </fieldset>
      <div
        class="list"
        ref={list}
        role="listbox"
        tabIndex={0}
        aria-label={TEXT.runs}
        aria-activedescendant={chosen >= rows.first && chosen < rows.last ? `run-${runId}` : undefined}
        onScroll={(event) => {
          const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
          setPlace({ top: scrollTop, seen: clientHeight });
          if (scrollTop + 3 * clientHeight > scrollHeight) {
            void store.listOlder();
          }
        }}
        onKeyDown={(event) => {
          const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
          if (by) {
            event.preventDefault();
            step(by);
          }
        }}
      >
        <div style={{ height: `${rows.before}px` }} />
        {found.slice(rows.first, rows.last).map((run) => (
          <Row key={run.run_id} run={run} chosen={run.run_id === runId} />
        ))}
        <div style={{ height: `${rows.after}px` }} />
        {!found.length && ( // a list box without an option is none
          <div class="empty" role="option" tabIndex={-1} aria-selected={false} aria-disabled={true}>
            {model.ordered.length ? TEXT.noMatch : TEXT.noRuns}
          </div>
        )}
        {olderRuns !== null && <p class="empty">{TEXT.older}</p>}
      </div>
    </section>
  );
}

function Row({ run, chosen }: { run: Run; chosen: boolean }) {
  const end = ending(run);
  const written = run.original_stdout_size + run.original_stderr_size;
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the list takes the keys
    <div
      id={`run-${run.run_id}`}
      class={`run ${toneOf(run)}`}
      role="option"
      tabIndex={-1}
      aria-selected={chosen}
      title={run.command.slice(0, 1000)}
      onClick={() => store.choose(run.run_id)}
    >
      <span class="sign" aria-hidden="true">
        {sign(run)}
      </span>
      <span class={`what ${run.description ? "" : "mono"}`}>{title(run)}</span>
      <span class="took">{duration(store.model.elapsed(run, performance.now()))}</span>
      <span class="about">
        {end && <span class="end">{end}</span>}
        {run.session_id !== "main" && <span class="mono">{run.session_id.slice(0, 8)}</span>}
        {run.description && <span class="mono rest">{run.command.slice(0, 200)}</span>}
        {run.typed_by_person && <span class="person">{TEXT.byPerson}</span>}
      </span>
      <span class="written">
        {written > 0 && run.status !== "running" ? `${size(written)} · ` : ""}
        {timeOfDay(run.started_at)}
      </span>
    </div>
  );
}

function show(list: HTMLDivElement | null, index: number) {
  if (list) {
    const top = index * HEIGHT;
    const least = top + HEIGHT - list.clientHeight;
    list.scrollTop = Math.max(least, Math.min(list.scrollTop, top));
  }
}
