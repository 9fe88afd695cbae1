// What somebody types, once they pause.

import { useEffect, useRef, useState } from "preact/hooks";

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

/** `text` at once where it has stood still for a while, and then when somebody who types on
 * pauses: for questions that are answered sooner than anybody pauses. */
export function useFirstAndSettled(text: string): string {
  const [settled, setSettled] = useState(text);
  const changedAt = useRef(-Infinity);
  useEffect(() => {
    const now = Date.now();
    const isFirst = now - changedAt.current > PAUSE_MS;
    changedAt.current = now;
    if (isFirst) {
      setSettled(text);
      return;
    }
    const timer = setTimeout(() => setSettled(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}
