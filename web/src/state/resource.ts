// What the API says of something, kept up to date by the event stream.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { address, AGAIN_MS, get, mayPass, problemIn, type Query } from "../api/client";
import { type Answer, feed, type ServerEvent } from "../api/events";
import { isSeen, onSight } from "./sight";

const SHORTEST_PAUSE_S = 1;

export interface Resource<T> {
  value: T | null;
  error: Error | null;
  /** Ask again, now. */
  reload: () => void;
  /** Show this until the server is asked again. */
  patch: (change: (value: T) => T) => void;
}

export interface Watching {
  /** Of which events it changes; none: it is asked for once. */
  when?: (event: ServerEvent) => boolean;
  /** Ask again after this time anyway, in seconds. */
  everyS?: number;
  /** The server tells when it has changed, and what to; the others are not needed then. Only
   * what it can share can be watched so. */
  isWatched?: boolean;
  /** However many events come, ask no more often than this, in seconds; by default 1. */
  pauseS?: number;
}

/** The answer of `path`. It is asked for again after events, and when the stream is back
 * after a gap. */
export function useResource<T>(
  path: string | null,
  query: Query = {},
  watching: Watching = {},
): Resource<T> {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const key = JSON.stringify([path, query]);
  const ask = useRef<() => void>(() => undefined);
  const when = useRef(watching.when);
  when.current = watching.when;

  useEffect(() => {
    setValue(null);
    setError(null);
    if (path === null) return;
    const asking = new Asking<T>(path, query, setValue, setError, watching.pauseS);
    ask.current = () => asking.now();
    asking.first();
    const ends = watching.isWatched
      ? [feed.watch(address(path, query), (answer) => asking.take(answer))]
      : [
          feed.listen((event) => when.current?.(event) && asking.soon()),
          feed.connection.watch((connection) => connection === "live" && asking.soon()),
          onSight((isNowSeen) => isNowSeen && watching.everyS && asking.soon()),
        ];
    const look = () => isSeen() && asking.soon();
    const timer = watching.everyS ? setInterval(look, watching.everyS * 1000) : 0;
    return () => {
      ends.forEach((end) => end());
      clearInterval(timer);
      asking.end();
    };
  }, [key]);

  const reload = useCallback(() => ask.current(), []);
  const patch = useCallback(
    (change: (value: T) => T) => setValue((old) => (old === null ? old : change(old))),
    [],
  );
  return { value, error, reload, patch };
}

/** Asks for one thing again and again, one request at a time. */
export class Asking<T> {
  private request: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | 0 = 0;
  private again: ReturnType<typeof setTimeout> | 0 = 0;
  private askedAt = 0;
  private isWanted = false;
  private isOver = false;
  /** How often the server has told unasked. */
  private told = 0;

  constructor(
    private path: string,
    private query: Query,
    private onValue: (value: T) => void,
    private onError: (error: Error | null) => void,
    private pauseS = SHORTEST_PAUSE_S,
  ) {}

  /** Ask, and take what another page got if nothing has changed since. */
  first(): void {
    void this.ask(feed.sharing(false));
  }

  /** Ask for what is there after what somebody did here. */
  now(): void {
    void this.ask();
  }

  /** What the server has told unasked. */
  take(answer: Answer): void {
    this.told += 1;
    if (answer.status === 200) {
      this.onValue(answer.body as T);
      this.onError(null);
    } else {
      this.onError(problemIn(answer.status, answer.body));
    }
  }

  soon(): void {
    if (this.timer) return;
    const wait = Math.max(0, this.askedAt + this.pauseS * 1000 - Date.now());
    this.timer = setTimeout(() => {
      this.timer = 0;
      void this.ask(feed.sharing(true));
    }, wait);
  }

  end(): void {
    this.isOver = true;
    clearTimeout(this.timer);
    clearTimeout(this.again);
    this.request?.abort();
  }

  private async ask(headers: Record<string, string> = {}): Promise<void> {
    if (this.request) {
      this.isWanted = true;
      return;
    }
    const request = new AbortController();
    this.request = request;
    this.askedAt = Date.now();
    clearTimeout(this.again);
    const toldBefore = this.told;
    try {
      const value = await get<T>(this.path, this.query, request.signal, headers);
      if (this.isOver) return;
      // What was told meanwhile may be newer, and is not told again.
      if (toldBefore === this.told) this.onValue(value);
      this.onError(null);
    } catch (error) {
      if (this.isOver) return;
      this.onError(error as Error);
      // What is asked for once would stay unknown.
      if (mayPass(error)) this.again = setTimeout(() => this.soon(), AGAIN_MS);
    }
    this.request = null;
    if (this.isWanted) {
      this.isWanted = false;
      this.soon();
    }
  }
}
