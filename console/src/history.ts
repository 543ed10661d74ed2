// The changes of files that can be undone, as the daemon remembers them.
import { store } from "./store.ts";

const MOST = 100;

export interface Change {
  path: string;
  operation: string;
  /** When it was made, as RFC 3339 in UTC: such texts sort as times do. */
  at: string;
  size: number;
  diff: string;
}

interface Kept {
  path: string;
  operation: string;
  changed_at: string;
  size: number;
  diff: string;
}

/** Returns the newest of them in all directories that the daemon gives access to, the newest first. */
export async function listChanges(): Promise<Change[]> {
  const found: Change[] = [];
  for (const path of store.metadata?.allowed_directories ?? []) {
    const told = await store.api?.json<{ changes: Kept[] }>("POST", "/files/history", { json: { path, limit: MOST } });
    found.push(...(told?.changes ?? []).map(({ changed_at, ...change }) => ({ ...change, at: changed_at })));
  }
  return found.sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, MOST);
}

/** Returns whether both are the same change, from whichever listing. */
export function same(one: Change, other: Change | null): boolean {
  return one.path === other?.path && one.at === other.at;
}
