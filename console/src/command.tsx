// A command line for a shell in which nothing runs: with history, and completion of paths.
import { useRef, useState } from "preact/hooks";
import { complete, wordAt } from "./completion.ts";
import { store } from "./store.ts";
import { TEXT } from "./text.ts";

interface Props {
  session: string;
  /** What stands in it: whoever runs it empties it when it has begun, so that one that is refused is not lost. */
  text: string;
  onText: (text: string) => void;
  disabled: boolean;
  why?: string;
  onRun: (command: string) => void;
}

interface Listed {
  directories: string[];
  files: string[];
}

export function CommandLine({ session, text, onText, disabled, why, onRun }: Props) {
  const [offers, setOffers] = useState<string[]>([]);
  const place = useRef(-1);
  const input = useRef<HTMLInputElement>(null);

  const run = () => {
    if (text.trim()) {
      place.current = -1;
      setOffers([]);
      onRun(text);
    }
  };
  const recall = (by: number) => {
    const commands = [
      ...new Set(store.model.ordered.filter((each) => each.session_id === session).map((each) => each.command)),
    ];
    place.current = Math.max(-1, Math.min(commands.length - 1, place.current + by));
    onText(commands[place.current] ?? "");
  };
  const offer = async () => {
    const element = input.current as HTMLInputElement;
    const at = element.selectionStart ?? text.length;
    const word = wordAt(text, at);
    const slash = word.lastIndexOf("/") + 1;
    const directory = store.model.shells.get(session)?.working_directory ?? ".";
    const base = word.slice(0, slash);
    const path = base.startsWith("/") ? base : `${directory}/${base}`;
    await store.attempt(async (api) => {
      const json = { path, hidden: word.slice(slash).startsWith(".") };
      const listed = await api.json<Listed>("POST", "/files/view", { json });
      const names = [...listed.directories.map((name) => `${name}/`), ...listed.files];
      const found = complete(word.slice(slash), names);
      setOffers(found.offers);
      const completed = text.slice(0, at - word.length) + base + found.text;
      onText(completed + text.slice(at));
      requestAnimationFrame(() => element.setSelectionRange(completed.length, completed.length));
    });
  };
  return (
    <form
      class="command"
      onSubmit={(event) => {
        event.preventDefault();
        run();
      }}
    >
      <span class="mono" aria-hidden="true">
        $
      </span>
      <input
        ref={input}
        class="mono"
        value={text}
        disabled={disabled}
        title={why}
        placeholder={why ?? TEXT.commandHint}
        aria-label={TEXT.commandLine}
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        onInput={(event) => {
          onText(event.currentTarget.value);
          setOffers([]);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowUp" || event.key === "ArrowDown") {
            event.preventDefault();
            recall(event.key === "ArrowUp" ? 1 : -1);
          } else if (event.key === "Tab" && !event.shiftKey && wordAt(text, event.currentTarget.selectionStart ?? 0)) {
            event.preventDefault();
            void offer();
          }
        }}
      />
      {offers.length > 1 && (
        <span class="offers mono" role="status" aria-label={TEXT.completions}>
          {offers.slice(0, 12).join("  ")}
        </span>
      )}
      <button type="submit" disabled={disabled || !text.trim()} title={why}>
        {TEXT.runIt}
      </button>
    </form>
  );
}
