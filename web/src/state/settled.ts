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
  const kept = useRef({ text, settled: text, changedAt: -Infinity });
  const [, draw] = useState(0);
  const known = kept.current;
  // While it is drawn, for an effect would come a frame later.
  if (known.text !== text) {
    const now = Date.now();
    if (now - known.changedAt > PAUSE_MS) known.settled = text;
    known.text = text;
    known.changedAt = now;
  }
  useEffect(() => {
    if (known.settled === text) return;
    const timer = setTimeout(() => {
      known.settled = text;
      draw((count) => count + 1);
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return known.settled;
}
