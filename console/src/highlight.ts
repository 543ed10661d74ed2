// A little colour for code: comments, strings, numbers, the words of most languages. Pure, linear, by line.

export interface Token {
  kind: "comment" | "string" | "number" | "word" | "plain";
  text: string;
}

const WORDS = new Set(
  (
    "abstract and as assert async await break case catch class const continue def default del do done elif else enum " +
    "esac except export extends extern false False fi final finally fn for from func function global go if impl " +
    "implements import in instanceof interface is lambda let local match mod mut namespace new nil None not null or " +
    "package pass private protected pub public raise readonly return self Self static struct super switch then this " +
    "throw trait true True try type typeof undefined union until use using var void where while with yield"
  ).split(" "),
);
const HASH = new Set([
  "py",
  "sh",
  "bash",
  "rb",
  "toml",
  "yaml",
  "yml",
  "cfg",
  "conf",
  "ini",
  "mk",
  "dockerfile",
  "makefile",
  "pl",
  "r",
  "ex",
  "env",
]);
const SLASHES = new Set([
  "js",
  "jsx",
  "ts",
  "tsx",
  "mjs",
  "cjs",
  "c",
  "h",
  "cc",
  "cpp",
  "hpp",
  "java",
  "go",
  "rs",
  "swift",
  "kt",
  "cs",
  "scala",
  "php",
  "dart",
  "css",
  "scss",
  "json5",
  "zig",
]);
const DASHES = new Set(["sql", "lua", "hs", "elm"]);
const LONGEST = 2000;
const TOKEN = /"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`(?:\\.|[^`\\])*`?|\b\d[\w.]*|[A-Za-z_]\w*|[^\w"'`]+/g;

/** Returns what kind of comments a file of that name has; null where it is no code. */
export function commentSign(name: string): string | null {
  const kind = (/\.([^.]+)$/.exec(name)?.[1] ?? name).toLowerCase();
  if (HASH.has(kind)) {
    return "#";
  }
  return SLASHES.has(kind) ? "//" : DASHES.has(kind) ? "--" : kind === "json" || kind === "html" ? "" : null;
}

export function highlight(line: string, comment: string | null): Token[] {
  if (comment === null || line.length > LONGEST) {
    return [{ kind: "plain", text: line }];
  }
  const tokens: Token[] = [];
  let rest = "";
  for (const [text] of line.matchAll(TOKEN)) {
    const at = comment && !/["'`]/.test(text[0] ?? "") ? text.indexOf(comment) : -1;
    const boundary =
      at > 0 ? /\s/.test(text[at - 1] ?? "") : at === 0 && (rest === "" || /\s$/.test(rest) || comment !== "#");
    if (at >= 0 && boundary) {
      if (at > 0) {
        tokens.push({ kind: "plain", text: text.slice(0, at) });
      }
      const before = tokens.reduce((sum, each) => sum + each.text.length, 0);
      tokens.push({ kind: "comment", text: line.slice(before) });
      return tokens;
    }
    tokens.push({ kind: kindOf(text), text });
    rest = text;
  }
  return tokens;
}

function kindOf(text: string): Token["kind"] {
  if (/^["'`]/.test(text)) {
    return "string";
  }
  return /^\d/.test(text) ? "number" : WORDS.has(text) ? "word" : "plain";
}
