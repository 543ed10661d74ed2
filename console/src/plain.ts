// Raw output as lines of plain text: without escape sequences, with what a carriage return has overwritten left out.
// Pure, linear. The daemon's own text is exact; this is for pieces out of the middle of a large log.

// CSI, then strings that end with BEL or ST (OSC, DCS, APC, PM, SOS), then escapes of two or three characters.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[ -/]{0,3}[0-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]/g;
const LONGEST_LINE = 10_000;

/** Returns the lines of a text; the last one may go on. */
export function linesOf(text: string): string[] {
  return text.replace(ESCAPES, "").split("\n").map(shown);
}

function shown(line: string): string {
  const end = line.endsWith("\r") ? line.length - 1 : line.length;
  const last = line.lastIndexOf("\r", end - 1);
  const text = line.slice(last + 1, end).replace(CONTROLS, "");
  return text.length > LONGEST_LINE ? `${text.slice(0, LONGEST_LINE)} …` : text;
}

/** Where the first whole line of bytes out of the middle of a log begins; their end where there is none. */
export function firstLineStart(bytes: Uint8Array): number {
  const feed = bytes.indexOf(10);
  return feed < 0 ? bytes.length : feed + 1;
}
