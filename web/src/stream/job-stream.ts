// A stream to a running job: a command beside it, or the input of its program. The browser adds
// the cookie of the sign-in, and says of which page it is; the server refuses what others open.

import { get } from "../api/client";
import { encode, type FromAgent, type FromClient, FrameReader, PART, WINDOW } from "./frames";

/** A browser takes what comes whether or not anybody keeps up, so this must end somewhere. */
const MOST_BYTES = 8 << 20;
const NOT_ADMITTED = 1008;
const LAST = new Set(["Exited", "NotStarted", "InputOver"]);

interface Listener {
  onFrame: (frame: FromAgent) => void;
  /** It is over: without an error after its last frame, or because it was closed here. */
  onEnd: (error: Error | null) => void;
}

export class JobStream {
  private readonly reader = new FrameReader();
  private unacknowledged = 0;
  private received = 0;
  private isOver = false;

  private constructor(
    private readonly socket: WebSocket,
    private readonly listener: Listener,
  ) {}

  /** Opens the stream at a path of the API. Problem says why there is none. */
  static async open(path: string, listener: Listener): Promise<JobStream> {
    // Browsers do not tell what a refusal of a WebSocket says.
    await get(path);
    const url = new URL(path, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    const stream = new JobStream(socket, listener);
    await new Promise<void>((resolve, reject) => {
      socket.onopen = () => resolve();
      socket.onclose = () => reject(new Error("The server has opened no stream. Try again."));
    });
    socket.onmessage = ({ data }) => stream.take(new Uint8Array(data as ArrayBuffer));
    socket.onclose = ({ code }) => stream.end(new Error(reasonOf(code)));
    return stream;
  }

  send(frame: FromClient): void {
    if (!this.isOver) this.socket.send(encode(frame));
  }

  /** Sends text as input. An Error where too much of it has not been taken yet. */
  type(text: string): void {
    const data = new TextEncoder().encode(text);
    if (this.unacknowledged + data.length > WINDOW) {
      throw new Error("The program has not taken yet what was sent before.");
    }
    this.unacknowledged += data.length;
    for (let start = 0; start < data.length; start += PART) {
      this.send({ type: "Input", data: data.subarray(start, start + PART) });
    }
  }

  close(): void {
    this.end(null);
  }

  private take(data: Uint8Array): void {
    this.received += data.length;
    try {
      for (const frame of this.reader.feed(data)) this.pass(frame);
    } catch (error) {
      this.end(error as Error);
    }
    if (this.received > MOST_BYTES) {
      const most = `${MOST_BYTES >> 20} MiB`;
      this.end(new Error(`It was ended: it has put out more than ${most}.`));
    }
  }

  private pass(frame: FromAgent): void {
    if (this.isOver) return;
    if (frame.type === "Taken") this.unacknowledged -= frame.count;
    else this.listener.onFrame(frame);
    if (LAST.has(frame.type)) this.end(null);
  }

  private end(error: Error | null): void {
    if (this.isOver) return;
    this.isOver = true;
    this.socket.close();
    this.listener.onEnd(error);
  }
}

function reasonOf(code: number): string {
  return code === NOT_ADMITTED
    ? "The server has ended the stream: you may not do this any more, or your sign-in is over."
    : "The server or the machine has gone away. The job itself goes on.";
}
