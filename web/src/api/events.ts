// The live stream of events: one for the page, for as long as it is open.
//
// It is read with `fetch`, not with EventSource: that tells neither a session that has
// ended from a server that is gone, nor how long to wait until the next try.

import { Store } from "../state/store";
import { Problem, request } from "./client";

export interface ServerEvent {
  seq: number | null;
  at: number;
  kind: string;
  job_id: string | null;
  data: Record<string, unknown>;
}

export type Connection = "connecting" | "live" | "lost" | "signed-out";
type Listener = (event: ServerEvent) => void;

const SHORTEST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

export class EventFeed {
  readonly connection = new Store<Connection>("connecting");
  private listeners = new Set<Listener>();
  private lastId = "";
  private isRunning = false;

  /** Calls `listener` for each event; returns how to end that. */
  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Reads until this browser is signed out; goes on where it was cut off. */
  async run(): Promise<void> {
    if (this.isRunning) return;
    this.isRunning = true;
    let wait = SHORTEST_WAIT_MS;
    while (this.isRunning) {
      try {
        await this.read(() => (wait = SHORTEST_WAIT_MS));
      } catch (error) {
        this.isRunning = !(error instanceof Problem && error.isSignedOut);
      }
      this.connection.set(this.isRunning ? "lost" : "signed-out");
      await pause(wait * (0.5 + Math.random() / 2));
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    }
  }

  private async read(onOpen: () => void): Promise<void> {
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (this.lastId) headers["Last-Event-ID"] = this.lastId;
    const answer = await request("/api/v1/events", { headers });
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
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) this.lastId = line.slice(4);
      if (line.startsWith("data: ")) this.tell(JSON.parse(line.slice(6)) as ServerEvent);
    }
  }

  private tell(event: ServerEvent): void {
    for (const listener of this.listeners) listener(event);
  }
}

function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

export const feed = new EventFeed();
