// Sends files as a version of a dataset, in chunks that other versions share.
//
// Which chunks the server has already is asked first, so an upload that was cut off goes
// on where it stopped, and what did not change is not sent again.

import { request, send } from "../api/client";

const CHUNK_BYTES = 8 * 2 ** 20;
// A file of at least this size has chunks of its own.
const LARGE_BYTES = 2 ** 20;
// Behind one small file in so many, chosen by its path, the stream is cut.
const CUT_ONE_IN = 64;
const AT_ONCE = 16;

export interface Entry {
  path: string;
  file: File;
}

export interface Progress {
  done: number;
  total: number;
}

/** The files that somebody chose, by path; those of a folder lie below it. */
export function entriesOf(files: readonly File[]): Entry[] {
  const entries = files.map((file) => {
    const inFolder = file.webkitRelativePath.split("/").slice(1).join("/");
    return { path: inFolder || file.name, file };
  });
  return entries.sort((a, b) => compare(a.path, b.path));
}

/** By code points, as the server sorts; JavaScript alone compares halves of pairs. */
function compare(a: string, b: string): number {
  const left = [...a];
  const right = [...b];
  const at = left.findIndex((letter, index) => letter !== right[index]);
  if (at < 0) return left.length - right.length;
  return left[at]!.codePointAt(0)! - (right[at]?.codePointAt(0) ?? -1);
}

/** Adds the version. `signal` ends it; what was sent by then stays. */
export async function upload(
  dataset: string,
  entries: readonly Entry[],
  onProgress: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<void> {
  const stream = new Blob(entries.map(({ file }) => file));
  const sizes = await chunkSizes(entries);
  const chunks: [string, number][] = [];
  let done = 0;
  for (let first = 0; first < sizes.length; first += AT_ONCE) {
    const known = new Map<string, Blob>();
    for (const size of sizes.slice(first, first + AT_ONCE)) {
      const chunk = stream.slice(done, done + size);
      const digest = hex(await crypto.subtle.digest("SHA-256", await chunk.arrayBuffer()));
      known.set(digest, chunk);
      chunks.push([digest, size]);
      done += size;
      signal.throwIfAborted();
    }
    await sendMissing(dataset, known, signal);
    onProgress({ done, total: stream.size });
  }
  const files = entries.map(({ path, file }) => [path, file.size, false]);
  await send("POST", `${dataset}/versions`, { files, chunks });
}

async function sendMissing(
  dataset: string,
  known: ReadonlyMap<string, Blob>,
  signal: AbortSignal,
): Promise<void> {
  const wanted = { chunks: [...known.keys()] };
  const { missing } = await send<{ missing: string[] }>(
    "POST",
    `${dataset}/chunks:missing`,
    wanted,
  );
  for (const digest of missing) {
    const body = known.get(digest)!;
    await request(`${dataset}/chunks/${digest}`, { method: "PUT", body, signal });
  }
}

/** Where the stream of all files is cut; the command cuts it at the same places. */
async function chunkSizes(entries: readonly Entry[]): Promise<number[]> {
  const sizes: number[] = [];
  let held = 0;
  const cut = (size: number) => {
    sizes.push(size);
    held -= size;
  };
  for (const { path, file } of entries) {
    const isLarge = file.size >= LARGE_BYTES;
    if (held > 0 && (isLarge || held + file.size > CHUNK_BYTES)) cut(held);
    held += file.size;
    while (held > CHUNK_BYTES) cut(CHUNK_BYTES);
    if (held > 0 && (isLarge || (await isCutBehind(path)))) cut(held);
  }
  if (held > 0) cut(held);
  return sizes;
}

async function isCutBehind(path: string): Promise<boolean> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(path));
  return new Uint8Array(digest)[0]! % CUT_ONE_IN === 0;
}

function hex(digest: ArrayBuffer): string {
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
