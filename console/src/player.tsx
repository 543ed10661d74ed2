// Plays the recording of a run: play, pause, seek, speed, without the pauses.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api.ts";
import { clock } from "./format.ts";
import { indexAfter, lengthOf, parseRecording, type Recording, withoutIdle } from "./recording.ts";
import { store } from "./store.ts";
import { TEXT } from "./text.ts";
import { onTheme } from "./theme.ts";
import type { Run } from "./types.ts";
import { TerminalView } from "./xterm.ts";

const SPEEDS = [0.5, 1, 2, 4, 16];
const LONGEST_PAUSE = 1; // second, where idle time is skipped
const PIECE = 64 * 1024;

export function Player({ run }: { run: Run }) {
  const [whole, setWhole] = useState<Recording | null>(null);
  const [none, setNone] = useState("");
  const [skip, setSkip] = useState(true);
  const [speed, setSpeed] = useState(1);
  const [at, setAt] = useState(0);
  const [playing, setPlaying] = useState(true);
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<TerminalView | null>(null);
  const done = useRef(0);
  const recording = whole && skip ? withoutIdle(whole, LONGEST_PAUSE) : whole;
  const length = recording ? lengthOf(recording) : 0;

  useEffect(() => {
    let current = true;
    const load = async () => {
      try {
        const path = `/runs/${encodeURIComponent(run.run_id)}/recording`;
        const text = await (await store.api?.ask("GET", path, { headers: { Accept: "*/*" } }))?.text();
        if (current && text) {
          setWhole(parseRecording(text));
        }
      } catch (error) {
        if (current) {
          setNone(error instanceof ApiError && error.status !== 404 ? error.message : TEXT.noRecording);
        }
      }
    };
    void load();
    return () => {
      current = false;
    };
  }, [run.run_id, run.status]);

  useEffect(() => {
    if (!whole) {
      return;
    }
    const made = new TerminalView(host.current as HTMLDivElement, whole.rows, whole.cols);
    view.current = made;
    done.current = 0;
    const stopColours = onTheme(() => made.recolour());
    return () => {
      stopColours();
      made.dispose();
      view.current = null;
    };
  }, [whole]);

  // What is shown is what was written up to `at`; a step back begins anew.
  useEffect(() => {
    const terminal = view.current;
    if (!recording || !terminal) {
      return;
    }
    const wanted = indexAfter(recording, at);
    if (wanted < done.current) {
      terminal.clear();
      terminal.resize(recording.rows, recording.cols);
      done.current = 0;
    }
    let text = "";
    for (const event of recording.events.slice(done.current, wanted)) {
      const size = event.kind === "r" ? /^(\d{1,3})x(\d{1,3})$/.exec(event.data) : null;
      if (size || text.length > PIECE) {
        void terminal.write(text);
        text = "";
      }
      if (size) {
        void terminal.write("").then(() => terminal.resize(Number(size[2]), Number(size[1])));
      } else if (event.kind === "o") {
        text += event.data;
      }
    }
    void terminal.write(text);
    done.current = wanted;
  }, [at, recording, whole]);

  useEffect(() => {
    if (!playing || !recording) {
      return;
    }
    let before = performance.now();
    const timer = setInterval(() => {
      const now = performance.now();
      const passed = ((now - before) / 1000) * speed;
      before = now;
      setAt((place) => Math.min(length, place + passed));
    }, 50);
    return () => clearInterval(timer);
  }, [playing, speed, length, recording !== null]);
  const over = at >= length;
  const toggle = () => {
    if (over) {
      setAt(0);
    }
    setPlaying(over || !playing);
  };
  return (
    <div class="live player">
      {none ? <p class="empty">{none}</p> : !whole && <p class="empty">{TEXT.loading}</p>}
      {whole && <div class="screen" ref={host} role="region" aria-label={TEXT.tabs.recording} />}
      {whole && (
        <div class="controls">
          <button type="button" class="strong" onClick={toggle}>
            {playing && !over ? TEXT.pause : TEXT.play}
          </button>
          <input
            type="range"
            min="0"
            max={length}
            step="any"
            value={at}
            aria-label={TEXT.seek}
            aria-valuetext={clock(at)}
            onInput={(event) => {
              setPlaying(false);
              setAt(Number(event.currentTarget.value));
            }}
          />
          <span class="mono figure">
            {length < 60 ? `${at.toFixed(1)} / ${length.toFixed(1)} s` : `${clock(at)} / ${clock(length)}`}
          </span>
          <label>
            <span class="hidden">{TEXT.speed}</span>
            <select value={speed} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>
              {SPEEDS.map((each) => (
                <option key={each} value={each}>
                  {each}×
                </option>
              ))}
            </select>
          </label>
          <label>
            <input type="checkbox" checked={skip} onChange={() => setSkip(!skip)} /> {TEXT.skipIdle}
          </label>
        </div>
      )}
    </div>
  );
}
