// Requests to the daemon. Knows the key and the forms of errors, not what is shown.
import { EventParser, type ServerEvent } from "./sse.ts";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
  ) {
    super(detail);
  }
}

export interface Ask {
  body?: BodyInit;
  json?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

export const KEY = /^[\x21-\x7e]{1,256}$/;

export class Api {
  constructor(readonly key: string) {}

  /** Sends one request. Throws `ApiError` for what the daemon refuses, and `TypeError` where it cannot be reached. */
  async ask(method: string, path: string, { body, json, headers, signal }: Ask = {}): Promise<Response> {
    const sent: Record<string, string> = { "X-Shell-Key": this.key, Accept: "application/json", ...headers };
    if (json !== undefined) {
      sent["Content-Type"] = "application/json";
    }
    const answer = await fetch(path, {
      method,
      headers: sent,
      body: json === undefined ? body : JSON.stringify(json),
      signal,
      cache: "no-store",
      credentials: "same-origin",
    });
    if (!answer.ok) {
      throw await refusal(answer);
    }
    return answer;
  }

  async json<T>(method: string, path: string, options?: Ask): Promise<T> {
    return (await this.ask(method, path, options)).json();
  }

  /** Gives the events of a stream until it ends. */
  async *events(path: string, lastId: string | null, signal: AbortSignal): AsyncGenerator<ServerEvent | null> {
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (lastId !== null) {
      headers["Last-Event-ID"] = lastId;
    }
    const answer = await this.ask("GET", path, { headers, signal });
    const reader = (answer.body as ReadableStream<Uint8Array>).getReader();
    const decoder = new TextDecoder();
    const parser = new EventParser();
    yield null; // it is open
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  }

  /** Opens a terminal: a browser cannot set headers of a WebSocket, so the key is a subprotocol. */
  terminal(sessionId: string, query: string): WebSocket {
    const base = sessionId === "main" ? "/terminal" : `/sessions/${encodeURIComponent(sessionId)}/terminal`;
    const url = new URL(`${base}?${query}`, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const coded = btoa(this.key).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
    const socket = new WebSocket(url, ["shelld.terminal.v1", `key.${coded}`]);
    socket.binaryType = "arraybuffer";
    return socket;
  }
}

async function refusal(answer: Response): Promise<ApiError> {
  const text = (await answer.text()).slice(0, 4096);
  try {
    const problem = JSON.parse(text);
    return new ApiError(answer.status, String(problem.code ?? ""), String(problem.detail ?? text));
  } catch {
    return new ApiError(answer.status, "", text || answer.statusText);
  }
}

/** Returns the path of a shell's verb. */
export function verb(sessionId: string, name: string): string {
  return sessionId === "main" ? `/${name}` : `/sessions/${encodeURIComponent(sessionId)}/${name}`;
}

/** Returns a path with a query string. */
export function withQuery(path: string, query: Record<string, string | number>): string {
  return `${path}?${new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]))}`;
}
