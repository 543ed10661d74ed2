// xterm.js in our colours. How it gets along with a policy that forbids inline styles is in sheet.ts.
import { FitAddon } from "@xterm/addon-fit";
import { type ITheme, Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { theme } from "./theme.ts";

const PIECE = 32_768; // bytes: a few milliseconds
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

const USUAL_FONT = 13;
const SMALLEST_FONT = 9; // what is wider is scrolled to
const LARGEST_FONT = 14;
const ALTERNATE = new Set([47, 1047, 1049]);
const FOCUS = 1004;
/** What asks the terminal something (DA, DSR, DECRQM, XTVERSION, window operations), by prefix, intermediates and final. */
const QUESTIONS = ["c", ">c", "=c", "n", "?n", "$p", "?$p", ">q", "t"];
const COLOURS = [4, 10, 11, 12, 104, 110, 111, 112];

/**
 * A terminal in a box of the page. Its columns are those of the daemon's terminal, and so are its rows on the alternate
 * screen, where programs draw; else it has as many rows as the box has room for.
 */
export class TerminalView {
  readonly terminal: Terminal;
  readonly #fit = new FitAddon();
  readonly #host: HTMLElement;
  readonly #observer: ResizeObserver;
  #size: { rows: number; cols: number };
  #alternate = false;

  constructor(host: HTMLElement, rows = 24, cols = 80) {
    this.#host = host;
    this.#size = { rows, cols };
    this.terminal = new Terminal({
      rows,
      cols,
      convertEol: true, // the terminals of the daemon do not make CR LF of a line feed
      scrollback: SCROLLBACK,
      fontFamily: "ui-monospace, 'SF Mono', 'Cascadia Mono', 'JetBrains Mono', Menlo, 'DejaVu Sans Mono', monospace",
      fontSize: USUAL_FONT,
      lineHeight: 1.2,
      theme: colours(),
      disableStdin: true,
      minimumContrastRatio: 4.5,
      linkHandler: { activate: () => undefined }, // a program's links lead nowhere
    });
    this.terminal.loadAddon(this.#fit);
    // Before what a program draws on its new screen: the handlers that are there by default come after these.
    for (const final of ["h", "l"]) {
      this.terminal.parser.registerCsiHandler({ prefix: "?", final }, (params) => {
        if (params.includes(FOCUS)) {
          return true;
        }
        if (params.some((mode) => typeof mode === "number" && ALTERNATE.has(mode))) {
          this.#alternate = final === "h";
          this.layOut();
        }
        return false;
      });
    }
    this.#giveNoAnswers();
    this.terminal.open(host);
    this.#observer = new ResizeObserver(() => this.layOut());
    this.#observer.observe(host);
    this.layOut();
  }

  /** What a program asks must not be typed by a page: only a person types here. Nor does a program set our colours. */
  #giveNoAnswers(): void {
    const { parser } = this.terminal;
    for (const question of QUESTIONS) {
      const [, prefix, intermediates, final] = /^([>=?]?)(\$?)(.)$/.exec(question) ?? [];
      const name = { prefix: prefix || undefined, intermediates: intermediates || undefined, final: final as string };
      parser.registerCsiHandler(name, () => true);
    }
    parser.registerDcsHandler({ intermediates: "$", final: "q" }, () => true);
    parser.registerDcsHandler({ intermediates: "+", final: "q" }, () => true);
    for (const colour of COLOURS) {
      parser.registerOscHandler(colour, () => true);
    }
  }

  /**
   * Writes what a program wrote; resolves when it is shown. A piece is parsed at one go, so pieces are small, and each waits
   * until the one before it has been: between two of them the page does whatever else there is to do.
   */
  async write(data: string | Uint8Array): Promise<void> {
    for (let from = 0; from < data.length || from === 0; from += PIECE) {
      const piece = typeof data === "string" ? data : data.subarray(from, from + PIECE);
      await new Promise<void>((resolve) => this.terminal.write(piece, resolve));
      if (typeof data === "string") {
        return;
      }
    }
  }

  /** Begins anew. */
  clear(): void {
    this.terminal.reset();
    this.#alternate = false;
    this.layOut();
  }

  /** Makes the columns fill the width as far as that is readable, and the rows the height. */
  layOut(): void {
    const { rows, cols } = this.#size;
    const room = this.#fit.proposeDimensions();
    if (!room?.cols || !room.rows || !this.#host.clientWidth) {
      return;
    }
    const font = this.terminal.options.fontSize ?? USUAL_FONT;
    const byHeight = this.#alternate ? Math.max(9, (font * room.rows) / rows) : LARGEST_FONT;
    const most = Math.min(LARGEST_FONT, byHeight, (font * room.cols) / cols);
    const wanted = Math.max(SMALLEST_FONT, Math.floor(2 * most) / 2);
    if (wanted !== font) {
      this.terminal.options.fontSize = wanted;
    }
    const fitting = wanted === font ? room.rows : (this.#fit.proposeDimensions()?.rows ?? room.rows);
    const shown = this.#alternate ? rows : Math.max(4, fitting);
    if (this.terminal.cols !== cols || this.terminal.rows !== shown) {
      this.terminal.resize(cols, shown);
    }
  }

  /** Returns the size that fills the box with a font of the usual size. */
  fullSize(): { rows: number; cols: number } | null {
    this.terminal.options.fontSize = USUAL_FONT;
    const room = this.#fit.proposeDimensions();
    return room?.cols && room.rows
      ? { rows: Math.min(200, Math.max(4, room.rows)), cols: Math.min(400, Math.max(20, room.cols)) }
      : null;
  }

  /** Takes the size that the daemon's terminal has. */
  resize(rows: number, cols: number): void {
    this.#size = { rows, cols };
    this.layOut();
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
