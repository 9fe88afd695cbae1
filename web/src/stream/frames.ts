// What goes through a stream to a running job: frames of a 4-byte length and a body in
// MessagePack, of which this knows what domain/stream_frames.py uses.

/** The most bytes of data in one frame. */
export const PART = 1 << 15;
/** So many bytes of input may be under way. */
export const WINDOW = 1 << 18;
const MOST_FRAME = 1 << 20;
const LENGTH = 4;

type Value = string | number | boolean | null | Uint8Array | Value[] | { [name: string]: Value };

export type FromClient =
  | { type: "RunCommand"; command: string[]; terminal: string; rows: number; columns: number }
  | { type: "Input"; data: Uint8Array }
  | { type: "InputEnd" };

export type FromAgent =
  | { type: "Taken"; count: number }
  | { type: "Output"; data: Uint8Array }
  | { type: "ErrorOutput"; data: Uint8Array }
  | { type: "Exited"; code: number; with_job?: boolean }
  | { type: "NotStarted"; reason: string; message: string }
  | { type: "InputOver"; cause: "ended" | "closed" | "attempt_over" };

/** One frame: length and body. */
export function encode(frame: FromClient): Uint8Array<ArrayBuffer> {
  const body: number[] = [];
  write(frame as { [name: string]: Value }, body);
  const framed = new Uint8Array(LENGTH + body.length);
  new DataView(framed.buffer).setUint32(0, body.length);
  framed.set(body, LENGTH);
  return framed;
}

function write(value: Value, out: number[]): void {
  if (typeof value === "string") {
    const bytes = new TextEncoder().encode(value);
    out.push(0xdb, ...big(bytes.length, 4));
    append(bytes, out);
  } else if (typeof value === "number") {
    out.push(0xce, ...big(value, 4));
  } else if (value instanceof Uint8Array) {
    out.push(0xc6, ...big(value.length, 4));
    append(value, out);
  } else if (Array.isArray(value)) {
    out.push(0xdc, ...big(value.length, 2));
    value.forEach((one) => write(one, out));
  } else if (value !== null && typeof value === "object") {
    const entries = Object.entries(value);
    out.push(0xde, ...big(entries.length, 2));
    for (const [name, one] of entries) {
      write(name, out);
      write(one, out);
    }
  } else {
    throw new Error("No frame of ours has such a value.");
  }
}

function append(bytes: Uint8Array, out: number[]): void {
  for (const byte of bytes) out.push(byte);
}

/** A number in so many bytes, the highest first. */
function big(value: number, size: number): number[] {
  return Array.from({ length: size }, (_, at) => (value >>> (8 * (size - 1 - at))) & 0xff);
}

/** Cuts what comes into frames. */
export class FrameReader {
  private received = new Uint8Array(0);

  /** The frames that are complete now; an Error for what is none. */
  feed(data: Uint8Array): FromAgent[] {
    const joined = new Uint8Array(this.received.length + data.length);
    joined.set(this.received);
    joined.set(data, this.received.length);
    const view = new DataView(joined.buffer);
    const frames: FromAgent[] = [];
    let at = 0;
    while (joined.length - at >= LENGTH) {
      const length = view.getUint32(at);
      if (length > MOST_FRAME) throw new Error("The stream has a frame that is too long.");
      const end = at + LENGTH + length;
      if (joined.length < end) break;
      frames.push(decode(joined.subarray(at + LENGTH, end)));
      at = end;
    }
    this.received = joined.slice(at);
    return frames;
  }
}

function decode(body: Uint8Array): FromAgent {
  const frame = new Decoder(body).value();
  const isFrame = frame !== null && typeof frame === "object" && "type" in frame;
  if (!isFrame) throw new Error("The stream has something that is no frame.");
  return frame as unknown as FromAgent;
}

class Decoder {
  private at = 0;
  private readonly view: DataView;

  constructor(private readonly body: Uint8Array) {
    this.view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  }

  value(): Value {
    const kind = this.unsigned(1);
    if (kind < 0x80) return kind;
    if (kind < 0x90) return this.map(kind & 0x0f);
    if (kind < 0xa0) return this.array(kind & 0x0f);
    if (kind < 0xc0) return this.text(kind & 0x1f);
    if (kind >= 0xe0) return kind - 0x100;
    return this.sized(kind);
  }

  private sized(kind: number): Value {
    switch (kind) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return kind === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.bytes(this.unsigned(1 << (kind - 0xc4)));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.unsigned(1 << (kind - 0xcc));
      case 0xd0:
      case 0xd1:
      case 0xd2:
        return this.signed(1 << (kind - 0xd0));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.unsigned(1 << (kind - 0xd9)));
      case 0xdc:
        return this.array(this.unsigned(2));
      case 0xde:
        return this.map(this.unsigned(2));
      default:
        throw new Error("The stream has a value that no frame of ours has.");
    }
  }

  private unsigned(size: number): number {
    const from = this.at;
    this.at += size;
    if (size === 1) return this.view.getUint8(from);
    return size === 2 ? this.view.getUint16(from) : this.view.getUint32(from);
  }

  private signed(size: number): number {
    const bits = 32 - 8 * size;
    return (this.unsigned(size) << bits) >> bits;
  }

  private bytes(length: number): Uint8Array {
    this.at += length;
    if (this.at > this.body.length) throw new Error("The stream has a frame that breaks off.");
    return this.body.subarray(this.at - length, this.at);
  }

  private text(length: number): string {
    return new TextDecoder().decode(this.bytes(length));
  }

  private array(length: number): Value[] {
    return Array.from({ length }, () => this.value());
  }

  private map(length: number): { [name: string]: Value } {
    // It has no prototype, whatever its names are.
    const found = Object.create(null) as { [name: string]: Value };
    for (let count = 0; count < length; count += 1) {
      const name = this.value();
      if (typeof name !== "string") throw new Error("The stream has a name that is no text.");
      found[name] = this.value();
    }
    return found;
  }
}
