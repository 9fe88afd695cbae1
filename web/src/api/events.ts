// The live stream of events: one for the page, for as long as somebody can see it. It brings
// answers to what the page watches, too, so that nothing needs to be asked again.
//
// It is read with `fetch`, not with EventSource: that tells neither a session that has
// ended from a server that is gone, nor how long to wait until the next try.

import { inSight, onSight } from "../state/sight";
import { Store } from "../state/store";
import { address, pause, Problem, request } from "./client";

export interface ServerEvent {
  seq: number | null;
  at: number;
  kind: string;
  job_id: string | null;
  data: Record<string, unknown>;
}

export type Connection = "connecting" | "live" | "lost" | "signed-out";
type Listener = (event: ServerEvent) => void;

/** What the API answers at `path` now. */
export interface Answer {
  path: string;
  status: number;
  body: unknown;
}

type Watcher = (answer: Answer) => void;

const SHORTEST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
// A screen begins to watch all that it shows at about the same time.
const GATHER_MS = 50;
// Who only looks at another tab for a moment misses nothing.
const UNSEEN_MS = 10_000;

export class EventFeed {
  readonly connection = new Store<Connection>("connecting");
  private listeners = new Set<Listener>();
  private watchers = new Map<string, Set<Watcher>>();
  private lastId = "";
  private isRunning = false;
  private reading: AbortController | null = null;
  private gathering: ReturnType<typeof setTimeout> | 0 = 0;
  private leaving: ReturnType<typeof setTimeout> | 0 = 0;

  constructor() {
    onSight((isNowSeen) => this.noteSight(isNowSeen));
  }

  /** Calls `listener` for each event; returns how to end that. */
  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Calls `watcher` with each new answer of `path`, one of those that can be watched;
   * returns how to end that. */
  watch(path: string, watcher: Watcher): () => void {
    const known = this.watchers.get(path);
    if (known) known.add(watcher);
    else this.watchers.set(path, new Set([watcher]));
    this.readAnew();
    return () => {
      const left = this.watchers.get(path)!;
      left.delete(watcher);
      if (left.size === 0) this.watchers.delete(path);
      this.readAnew();
    };
  }

  /** The headers of a question that may have the answer that another page got, if all is in
   * it that this page has heard of. `waits`: it need not come at once. */
  sharing(waits: boolean): Record<string, string> {
    return {
      "Cache-Control": "max-age=1",
      ...(waits && { Prefer: "wait=1" }),
      ...(this.lastId && { "Last-Event-ID": this.lastId }),
    };
  }

  /** Reads until this browser is signed out; goes on where it was cut off. */
  async run(): Promise<void> {
    if (this.isRunning) return;
    this.isRunning = true;
    let wait = SHORTEST_WAIT_MS;
    for (;;) {
      await inSight();
      const reading = new AbortController();
      this.reading = reading;
      try {
        await this.read(reading.signal, () => (wait = SHORTEST_WAIT_MS));
      } catch (error) {
        if (error instanceof Problem && error.isSignedOut) break;
      }
      if (reading.signal.aborted) continue;
      this.connection.set("lost");
      await pause(wait * (0.5 + Math.random() / 2));
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    }
    this.isRunning = false;
    this.connection.set("signed-out");
  }

  /** Other things are watched from now on. */
  private readAnew(): void {
    clearTimeout(this.gathering);
    this.gathering = setTimeout(() => this.reading?.abort(), GATHER_MS);
  }

  /** A browser has few connections to a server: those that nobody looks at end. */
  private noteSight(isNowSeen: boolean): void {
    clearTimeout(this.leaving);
    if (!isNowSeen) this.leaving = setTimeout(() => this.reading?.abort(), UNSEEN_MS);
  }

  private async read(signal: AbortSignal, onOpen: () => void): Promise<void> {
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (this.lastId) headers["Last-Event-ID"] = this.lastId;
    const path = address("/api/v1/events", { watch: [...this.watchers.keys()] });
    const answer = await request(path, { headers, signal });
    this.connection.set("live");
    onOpen();
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) this.take(block);
    }
  }

  private take(block: string): void {
    const isAnswer = block.startsWith("event: answer\n");
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) this.lastId = line.slice(4);
      if (!line.startsWith("data: ")) continue;
      const data: unknown = JSON.parse(line.slice(6));
      if (isAnswer) this.show(data as Answer);
      else this.tell(data as ServerEvent);
    }
  }

  private show(answer: Answer): void {
    for (const watcher of this.watchers.get(answer.path) ?? []) watcher(answer);
  }

  private tell(event: ServerEvent): void {
    for (const listener of this.listeners) listener(event);
  }
}

export const feed = new EventFeed();
