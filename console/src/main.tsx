// The page: what stands where, the keys, and what is said when something is wrong.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Files } from "./files.tsx";
import { Header } from "./header.tsx";
import { Runs } from "./runs.tsx";
import { Ports, Sessions } from "./side.tsx";
import { type Pane, store, type Tab, useStore } from "./store.ts";
import "./style.css";
import { TEXT } from "./text.ts";
import { applyTheme, flipTheme } from "./theme.ts";
import { View } from "./view.tsx";

function Page() {
  const { phase, pane, help, notice, model } = useStore();
  if (phase === "key" || (phase === "connecting" && !model.shells.size && !model.runs.size)) {
    return <KeyForm />;
  }
  const trouble = { lost: TEXT.lost, ended: TEXT.ended, connecting: "", open: "", key: "" }[phase];
  return (
    <>
      <a class="skip" href="#panel">
        {TEXT.skip}
      </a>
      <Header />
      <div class="notices" role="alert">
        {trouble && (
          <p class="trouble">
            {trouble} <span class="faint">{TEXT.stale}</span>
          </p>
        )}
        {notice && (
          <p>
            {notice}{" "}
            <button type="button" class="quiet" onClick={() => store.set({ notice: "" })}>
              {TEXT.dismiss}
            </button>
          </p>
        )}
      </div>
      <main class={`layout show-${pane}`}>
        <div class="left">
          <Runs />
          <Sessions />
        </div>
        <div class="right">
          <View />
          <div class="dock">
            <Files />
            <Ports />
          </div>
        </div>
      </main>
      <nav class="panes" aria-label={TEXT.name}>
        {(Object.keys(TEXT.panes) as Pane[]).map((each) => (
          <button type="button" key={each} aria-pressed={pane === each} onClick={() => store.set({ pane: each })}>
            {TEXT.panes[each]}
          </button>
        ))}
      </nav>
      {help && <Help />}
    </>
  );
}

function KeyForm() {
  const { phase, keyProblem } = useStore();
  const [key, setKey] = useState("");
  const waits = phase !== "key";
  return (
    <main class="key-page">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          store.enter(key.trim());
        }}
      >
        <img src="/console/icon-idle.svg" alt="" width="44" height="44" />
        <h1>{TEXT.keyTitle}</h1>
        <p class="faint mono">{location.host}</p>
        <label for="key">{TEXT.keyLabel}</label>
        <input
          id="key"
          type="password"
          class="mono"
          autocomplete="off"
          value={key}
          disabled={waits}
          aria-describedby="key-hint"
          aria-invalid={keyProblem !== ""}
          autofocus
          onInput={(event) => setKey(event.currentTarget.value)}
        />
        <p id="key-hint" class="faint">
          {TEXT.keyHint}
        </p>
        <p class="error" role="alert">
          {keyProblem || (phase === "lost" || phase === "ended" ? TEXT.lost : "")}
        </p>
        <button type="submit" class="strong" disabled={waits || !key.trim()}>
          {waits ? TEXT.connecting : TEXT.keyOpen}
        </button>
      </form>
    </main>
  );
}

function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const close = () => store.set({ help: false });
  return (
    <dialog ref={dialog} onClose={close} aria-label={TEXT.keysTitle}>
      <h2>{TEXT.keysTitle}</h2>
      <dl>
        {TEXT.keys.map(([keys, what]) => (
          <div key={keys}>
            <dt class="mono">{keys}</dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={() => dialog.current?.close()}>
        {TEXT.close}
      </button>
    </dialog>
  );
}

const TABS: Record<string, Tab> = { 1: "terminal", 2: "screen", 3: "output", 4: "recording", 5: "changes" };

function say(what: string): void {
  document.dispatchEvent(new CustomEvent("console-key", { detail: what }));
}

function onKey(event: KeyboardEvent): void {
  if (event.key === "Escape" && event.ctrlKey && event.shiftKey) {
    event.preventDefault();
    event.stopPropagation();
    say("hand");
    return;
  }
  const target = event.target as HTMLElement;
  const typing = target.closest?.("input, textarea, select, .taken .screen, dialog");
  if (typing || event.ctrlKey || event.altKey || event.metaKey || !store.api) {
    return;
  }
  const tab = TABS[event.key];
  if (tab) {
    store.set({ tab, pane: "view" });
    return;
  }
  const actions: Record<string, () => void> = {
    j: () => say("next"),
    k: () => say("previous"),
    l: () => store.choose(null),
    Escape: () => store.choose(null),
    t: () => say("take"),
    f: () => store.set({ pane: "files" }),
    p: () => store.set({ pane: "ports" }),
    d: flipTheme,
    "/": () => say("search"),
    "?": () => store.set({ help: true }),
  };
  const action = actions[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
}

applyTheme();
document.addEventListener("keydown", onKey, true);
addEventListener("hashchange", () => {
  if (/[#&]key=/.test(location.hash)) {
    store.begin(); // but not for the link that skips to the terminal
  }
});
for (const name of ["dragover", "drop"]) {
  addEventListener(name, (event) => event.preventDefault()); // a file that misses its place must not replace the page
}
render(<Page />, document.getElementById("app") as HTMLElement);
store.begin();
