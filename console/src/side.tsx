// Sessions beside each other, and the ports that they have opened.
import { title, toneOfState } from "./format.ts";
import { store, useStore } from "./store.ts";
import { TEXT } from "./text.ts";
import type { Port } from "./types.ts";

export function Sessions() {
  const { model, session, observer } = useStore();
  const why = observer ? TEXT.observerWhy : undefined;
  const openOne = () =>
    store.attempt(async (api) => {
      const opened = await api.json<{ session_id: string }>("POST", "/sessions", { json: {} });
      model.apply({ type: "session_opened", data: { session_id: opened.session_id, reason: "" } }, performance.now());
      store.chooseSession(opened.session_id);
    });
  return (
    <section class="sessions" aria-label={TEXT.sessions}>
      <div class="bar">
        <h2>{TEXT.sessions}</h2>
        <button
          type="button"
          disabled={observer}
          title={why ?? TEXT.openSession}
          aria-label={TEXT.openSession}
          onClick={openOne}
        >
          +
        </button>
      </div>
      <ul>
        {[...model.shells.values()].map((shell) => {
          const run = model.current(shell.session_id);
          return (
            <li key={shell.session_id} class={shell.session_id === session ? "chosen" : ""}>
              <button
                type="button"
                aria-pressed={shell.session_id === session}
                onClick={() => store.chooseSession(shell.session_id)}
              >
                <span class={`state ${toneOfState(shell.state, run?.awaiting_input ?? false)}`}>
                  <span class="dot" aria-hidden="true" />
                </span>
                <span class="mono">{shell.session_id}</span>
                <span class="faint">{run ? title(run).slice(0, 100) : TEXT.states[shell.state]}</span>
              </button>
              {shell.session_id !== "main" && (
                <button
                  type="button"
                  class="quiet"
                  disabled={observer}
                  title={why ?? TEXT.closeSession(shell.session_id)}
                  aria-label={TEXT.closeSession(shell.session_id)}
                  onClick={() =>
                    store.attempt((api) => api.ask("DELETE", `/sessions/${encodeURIComponent(shell.session_id)}`))
                  }
                >
                  ×
                </button>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}

export function Ports() {
  const { model, observer } = useStore();
  return (
    <section class="ports" aria-label={TEXT.ports}>
      <div class="bar">
        <h2>{TEXT.ports}</h2>
      </div>
      {!model.ports.size && <p class="empty">{TEXT.noPorts}</p>}
      <ul>
        {[...model.ports.values()].map((port) => (
          <li key={`${port.port} ${port.session_id}`}>
            <button
              type="button"
              disabled={observer}
              title={observer ? TEXT.observerWhy : TEXT.openPort(port.port)}
              onClick={() => openPort(port)}
            >
              <span class="mono">{port.port} ↗</span>
              <span class="faint">
                {port.session_id} · pid {port.pid}
              </span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Opens what listens there by a link that works once. The daemon makes it, and it leads to the daemon's proxy. */
async function openPort(port: Port): Promise<void> {
  const page = window.open("", "_blank"); // now, or the browser takes it for an advertisement
  const done = await store.attempt(async (api) => {
    const link = await api.json<{ url: string }>("POST", `/ports/${port.port}/link`, { json: {} });
    const url = new URL(link.url);
    if (!/^https?:$/.test(url.protocol)) {
      throw new TypeError("The link leads elsewhere.");
    }
    if (page) {
      page.opener = null;
      page.location.replace(url.href);
    }
  });
  if (!done) {
    page?.close();
  }
}
