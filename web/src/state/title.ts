// The title of the browser's tab.

import { useEffect } from "preact/hooks";

/** Name what this screen is about, once that is known: several tabs may show the same screen. */
export function useTitle(name: string | null | undefined): void {
  useEffect(() => {
    if (name) document.title = `${name} · gpuyard`;
  }, [name]);
}
