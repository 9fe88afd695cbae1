// Rows that scroll sideways on narrow screens, with what is chosen in sight.

import type { RefObject } from "preact";
import { useEffect } from "preact/hooks";

/** Scrolls `row` so that the first element that matches `chosen` is in its middle, whenever
 * `key` changes. */
export function useCentred(row: RefObject<HTMLElement>, chosen: string, key: string): void {
  useEffect(() => {
    const element = row.current?.querySelector<HTMLElement>(chosen);
    if (!row.current || !element) return;
    const left = element.offsetLeft - row.current.offsetLeft;
    row.current.scrollLeft = left - (row.current.clientWidth - element.offsetWidth) / 2;
  }, [key]);
}
