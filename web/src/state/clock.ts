// The server's clock: its times are compared with nothing else.

import { useEffect, useState } from "preact/hooks";

let aheadMs = 0;

/** Note the `Date` of an answer that has just come. It is cut to whole seconds. */
export function noteDate(header: string | null): void {
  const at = header ? Date.parse(header) : NaN;
  if (Number.isFinite(at)) aheadMs = at + 500 - Date.now();
}

/** The server's time in UTC seconds. */
export function serverNow(): number {
  return (Date.now() + aheadMs) / 1000;
}

/** `serverNow`, every second. */
export function useNow(): number {
  const [now, setNow] = useState(serverNow());
  useEffect(() => {
    const timer = setInterval(() => setNow(serverNow()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
