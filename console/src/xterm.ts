// xterm.js, in our colours, and under a policy that forbids inline styles.
//
// xterm makes `<style>` elements and sets `style` attributes, which `default-src 'self'` forbids. What scripts do through
// the CSS object model it allows. So xterm is given a document whose elements do that: a style element hands its text to a
// constructed style sheet, and a `style` attribute is set as `style.cssText`. No exception in the policy is needed.
import { FitAddon } from "@xterm/addon-fit";
import { type ITheme, Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { theme } from "./theme.ts";

const SCROLLBACK = 5000; // lines: the rest of a large output is read by range

const DARK: ITheme = {
  background: "#0f1115",
  foreground: "#d7dae0",
  cursor: "#e8eaf0",
  cursorAccent: "#0f1115",
  selectionBackground: "#3a4a68",
  black: "#2a2e37",
  red: "#f2777a",
  green: "#7bd88f",
  yellow: "#f5c76b",
  blue: "#79aefb",
  magenta: "#cf9bf2",
  cyan: "#6cd0d8",
  white: "#d7dae0",
  brightBlack: "#818999",
  brightRed: "#ff9a9c",
  brightGreen: "#a4ebb3",
  brightYellow: "#ffdc91",
  brightBlue: "#a3c8ff",
  brightMagenta: "#e3bfff",
  brightCyan: "#97e8ee",
  brightWhite: "#ffffff",
};
const LIGHT: ITheme = {
  background: "#fbfbfc",
  foreground: "#22252b",
  cursor: "#22252b",
  cursorAccent: "#fbfbfc",
  selectionBackground: "#c5d8f7",
  black: "#22252b",
  red: "#b3261e",
  green: "#1a6e37",
  yellow: "#7d5700",
  blue: "#1f57b5",
  magenta: "#7b36a8",
  cyan: "#0b6a75",
  white: "#5f6470",
  brightBlack: "#5f6470",
  brightRed: "#c4302b",
  brightGreen: "#20793f",
  brightYellow: "#8a6100",
  brightBlue: "#2a65c7",
  brightMagenta: "#8b45b8",
  brightCyan: "#117480",
  brightWhite: "#3b3f47",
};

export class TerminalView {
  readonly terminal: Terminal;
  readonly #fit = new FitAddon();
  readonly #host: HTMLElement;
  readonly #observer: ResizeObserver;

  constructor(host: HTMLElement, rows = 24, cols = 80) {
    this.#host = host;
    this.terminal = new Terminal({
      rows,
      cols,
      convertEol: true, // the terminals of the daemon do not make CR LF of a line feed
      scrollback: SCROLLBACK,
      fontFamily: "ui-monospace, 'SF Mono', 'Cascadia Mono', 'JetBrains Mono', Menlo, 'DejaVu Sans Mono', monospace",
      fontSize: 13,
      lineHeight: 1.2,
      theme: colours(),
      disableStdin: true,
      cursorBlink: false,
      minimumContrastRatio: 4.5,
      screenReaderMode: false,
      // Titles, links and answers to questions of a program: a program gets answers from the daemon's terminal alone.
      linkHandler: { activate: () => undefined, allowNonHttpProtocols: false },
      documentOverride: styledDocument,
    });
    this.terminal.loadAddon(this.#fit);
    // Some parts of xterm 6.0 take the page's own document in spite of `documentOverride`, all of them now.
    document.createElement = createElement as typeof document.createElement;
    try {
      this.terminal.open(host);
    } finally {
      Reflect.deleteProperty(document, "createElement");
    }
    this.#observer = new ResizeObserver(() => this.fitFont());
    this.#observer.observe(host);
    this.fitFont();
  }

  /** Writes what a program wrote; resolves when it is shown. */
  write(data: string | Uint8Array): Promise<void> {
    return new Promise((resolve) => this.terminal.write(data, resolve));
  }

  /** Makes the terminal's columns fill the width, as far as that is readable: its size is the program's matter. */
  fitFont(): void {
    const proposed = this.#fit.proposeDimensions();
    if (!proposed?.cols || !this.#host.clientWidth) {
      return;
    }
    const now = this.terminal.options.fontSize ?? 13;
    const byWidth = (now * proposed.cols) / this.terminal.cols;
    const byHeight = (now * proposed.rows) / this.terminal.rows;
    const wanted = Math.max(7, Math.min(15, Math.floor(2 * Math.min(byWidth, Math.max(byHeight, 12))) / 2));
    if (Math.abs(wanted - now) >= 0.5) {
      this.terminal.options.fontSize = wanted;
    }
  }

  /** Returns the size that fills the window with a font of the usual size. */
  fullSize(): { rows: number; cols: number } | null {
    this.terminal.options.fontSize = 13;
    const proposed = this.#fit.proposeDimensions();
    return proposed?.cols && proposed.rows
      ? { rows: Math.min(200, Math.max(4, proposed.rows)), cols: Math.min(400, Math.max(20, proposed.cols)) }
      : null;
  }

  resize(rows: number, cols: number): void {
    this.terminal.resize(cols, rows);
    this.fitFont();
  }

  recolour(): void {
    this.terminal.options.theme = colours();
  }

  dispose(): void {
    this.#observer.disconnect();
    this.terminal.dispose();
  }
}

function colours(): ITheme {
  return theme() === "dark" ? DARK : LIGHT;
}

function setStyle(this: HTMLElement, name: string, value: string): void {
  if (name === "style") {
    this.style.cssText = value;
  } else {
    Element.prototype.setAttribute.call(this, name, value);
  }
}

function createElement(name: string): HTMLElement {
  // Even an empty style element is refused: what stands in its place is not shown.
  const element: HTMLElement = Document.prototype.createElement.call(document, name === "style" ? "template" : name);
  if (name !== "style") {
    element.setAttribute = setStyle;
    return element;
  }
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

const styledDocument = new Proxy(document, {
  get(target, name) {
    if (name === "createElement") {
      return createElement;
    }
    const value = Reflect.get(target, name, target);
    return typeof value === "function" ? value.bind(target) : value;
  },
});
