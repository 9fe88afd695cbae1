// Whether anybody can see the page. One that is in a hidden tab asks the server nothing.

export function isSeen(): boolean {
  return document.visibilityState !== "hidden";
}

/** Calls `listener` when the page comes into sight, or goes; returns how to end that. */
export function onSight(listener: (isNowSeen: boolean) => void): () => void {
  const tell = () => listener(isSeen());
  document.addEventListener("visibilitychange", tell);
  return () => document.removeEventListener("visibilitychange", tell);
}

/** Resolves when the page can be seen. */
export function inSight(): Promise<void> {
  if (isSeen()) return Promise.resolve();
  return new Promise((resolve) => {
    const end = onSight(() => {
      end();
      resolve();
    });
  });
}
