// Light or dark: as the system has it, until a person says otherwise.

const STORED = "shelld-theme";
export type Theme = "light" | "dark";

const listeners = new Set<() => void>();
const system = matchMedia("(prefers-color-scheme: dark)");

export function theme(): Theme {
  const chosen = localStorage.getItem(STORED);
  return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
}

export function flipTheme(): void {
  localStorage.setItem(STORED, theme() === "dark" ? "light" : "dark");
  applyTheme();
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme();
  for (const listener of listeners) {
    listener();
  }
}

export function onTheme(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

system.addEventListener("change", applyTheme);
