// Server-sent events out of the chunks of a response: EventSource cannot send a key. Linear, and bounded.

export interface ServerEvent {
  event: string;
  id: string | null;
  data: string;
}

const LONGEST = 16 * 1024 * 1024;

export class EventParser {
  #rest = "";

  /** Returns the events that end within `text`. A carriage return cannot stand in what our daemon sends as JSON. */
  feed(text: string): ServerEvent[] {
    const pieces = (this.#rest + text).split("\n\n");
    this.#rest = pieces.pop() ?? "";
    if (this.#rest.length > LONGEST) {
      throw new Error("An event is too long.");
    }
    return pieces.map(parsed).filter((event) => event.data !== "");
  }
}

function parsed(block: string): ServerEvent {
  const found: ServerEvent = { event: "message", id: null, data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const name = line.slice(0, colon);
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") {
      found.event = value;
    } else if (name === "id") {
      found.id = value;
    } else if (name === "data") {
      found.data += (found.data && "\n") + value;
    }
  }
  return found;
}
