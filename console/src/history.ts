// The changes of files that can be undone, as the daemon remembers them.
import { ApiError } from "./api.ts";
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
  for (const path of topmost(store.metadata?.allowed_directories ?? [])) {
    try {
      const json = { path, limit: MOST };
      const told = await store.api?.json<{ changes: Kept[] }>("POST", "/files/history", { json });
      found.push(...(told?.changes ?? []).map(({ changed_at, ...change }) => ({ ...change, at: changed_at })));
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error; // the connection is lost: what is known stays
      }
      // Refused, as of a directory that is not there: the others have changes all the same.
    }
  }
  return found.sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, MOST);
}

/** Returns the directories that are below no other of them: of one that is, the other tells, too. */
export function topmost(paths: readonly string[]): string[] {
  const isBelow = (path: string, other: string) => path !== other && path.startsWith(other.replace(/\/?$/, "/"));
  return [...new Set(paths)].filter((path) => !paths.some((other) => isBelow(path, other)));
}

/** Returns whether both are the same change, from whichever listing. */
export function same(one: Change, other: Change | null): boolean {
  return one.path === other?.path && one.at === other.at;
}
