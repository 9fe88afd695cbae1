// What somebody types, once they pause.

import { useEffect, useState } from "preact/hooks";

// Longer than between two letters, and shorter than what feels like waiting.
const PAUSE_MS = 200;

/** `text` when it has stood still for a moment; at once where it is emptied. */
export function useSettled(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    if (text === "") {
      setSettled(text);
      return;
    }
    const timer = setTimeout(() => setSettled(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return text === "" ? text : settled;
}
