// Which rows of a long list are seen. Pure.

export interface Rows {
  first: number;
  last: number;
  before: number;
  after: number;
}

/** Returns the rows to draw of `count` that are `height` high each, and the empty space around them. */
export function visibleRows(count: number, height: number, scrollTop: number, seen: number, spare = 8): Rows {
  const first = Math.max(0, Math.min(count, Math.floor(scrollTop / height) - spare));
  const last = Math.min(count, Math.ceil((scrollTop + seen) / height) + spare);
  return {
    first,
    last: Math.max(first, last),
    before: first * height,
    after: (count - Math.max(first, last)) * height,
  };
}
