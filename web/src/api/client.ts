// Requests to the API of this server, as whoever has signed in with this browser.

import { noteDate } from "../state/clock";
import type { components } from "./schema";

export type Schemas = components["schemas"];
export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** An error of the API (RFC 9457): what is wrong, and what to do. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly remedy: string | null,
    /** Which fields of what was sent are wrong, and how. */
    readonly faults: readonly Schemas["FieldFault"][] = [],
  ) {
    super(detail);
  }

  get isSignedOut(): boolean {
    return this.status === 401;
  }
}

/** The server did not answer at all. */
export class Unreachable extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

/** After this time, what the server failed to answer is asked again. */
export const AGAIN_MS = 5000;

export function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** Whether the same question may be answered later: the server failed, or had too much to do. */
export function mayPass(error: unknown): boolean {
  return !(error instanceof Problem) || error.status >= 500 || error.status === 429;
}

const signedOut = new Set<() => void>();
/** How often somebody has signed in, here or in another tab. */
let signIns = 0;

export function noteSignIn(): void {
  signIns += 1;
}

/** Calls `listener` when the server says that nobody is signed in any more. */
export function onSignedOut(listener: () => void): void {
  signedOut.add(listener);
}

/** `path` with a query string of what is not undefined. */
export function address(path: string, query: Query = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    const values = Array.isArray(value) ? value : [value];
    for (const one of values) {
      if (one !== undefined) words.append(name, String(one));
    }
  }
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}

export async function get<T>(
  path: string,
  query: Query = {},
  signal?: AbortSignal,
  headers: Record<string, string> = {},
): Promise<T> {
  const answer = await request(address(path, query), { headers, ...(signal && { signal }) });
  return (await answer.json()) as T;
}

export async function getText(path: string, signal?: AbortSignal): Promise<string> {
  const answer = await request(path, signal ? { signal } : {});
  return answer.text();
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  const given: RequestInit = { method };
  if (body !== undefined) {
    given.body = JSON.stringify(body);
    given.headers = { "Content-Type": "application/json" };
  }
  const answer = await request(path, given);
  return (answer.status === 204 ? null : await answer.json()) as T;
}

/** Signs this browser in, with a token or with the code of a link; Problem if it is none. */
export async function signIn(shown: { token: string } | { code: string }): Promise<void> {
  await request("/auth/token", { method: "POST", body: new URLSearchParams(shown) });
}

export async function signOut(): Promise<void> {
  // The answer sends browsers without scripts to a page of its own.
  await fetch("/auth/logout", { method: "POST", redirect: "manual" });
}

export async function request(path: string, given: RequestInit = {}): Promise<Response> {
  const asked = signIns;
  const answer = await reach(path, given);
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (!problem.isSignedOut) throw problem;
  // It was asked under a sign-in that is over. The server has done nothing of it.
  if (asked !== signIns) return request(path, given);
  signedOut.forEach((tell) => tell());
  throw problem;
}

async function reach(path: string, given: RequestInit): Promise<Response> {
  try {
    const answer = await fetch(path, given);
    noteDate(answer.headers.get("Date"));
    return answer;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Unreachable();
  }
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    return problemIn(answer.status, await answer.json());
  } catch {
    return new Problem(answer.status, "unknown", `The server answered ${answer.status}.`, null);
  }
}

/** What the body of an answer says is wrong. */
export function problemIn(status: number, answer: unknown): Problem {
  const body = answer as Schemas["Problem"] & { error?: { message?: string; code?: string } };
  // Models answer as OpenAI's do.
  if (body.error) {
    return new Problem(status, body.error.code ?? "unknown", body.error.message ?? "", null);
  }
  const remedy = body.remedy ?? null;
  // The detail ends with the remedy, for those who show only one of them.
  const detail = remedy ? (body.detail ?? "").replace(remedy, "").trim() : body.detail;
  return new Problem(status, body.code, detail || body.title, remedy, body.faults ?? []);
}
