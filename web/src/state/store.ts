// A value that components watch.

import { useEffect, useState } from "preact/hooks";

export class Store<T> {
  private watchers = new Set<(value: T) => void>();

  constructor(private current: T) {}

  get value(): T {
    return this.current;
  }

  set(value: T): void {
    if (Object.is(value, this.current)) return;
    this.current = value;
    for (const watcher of this.watchers) watcher(value);
  }

  /** Calls `watcher` with each new value; returns how to end that. */
  watch(watcher: (value: T) => void): () => void {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }
}

/** The value of a store; the component is drawn again when it changes. */
export function useStore<T>(store: Store<T>): T {
  const [value, setValue] = useState(store.value);
  useEffect(() => {
    setValue(() => store.value);
    return store.watch((next) => setValue(() => next));
  }, [store]);
  return value;
}
