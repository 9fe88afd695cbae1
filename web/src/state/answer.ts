// What the server answers to a question that changes while somebody types.

import { useEffect, useState } from "preact/hooks";

import { request } from "../api/client";

const PAUSE_MS = 400;

export interface Answer<T> {
  value: T | null;
  error: Error | null;
  isAsking: boolean;
}

/** The answer to the POST of `body`, asked when it has stood still for a moment; the last
 * one stays until the next one is there. Null asks nothing. */
export function useAnswer<T>(path: string, body: unknown): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ value: null, error: null, isAsking: false });
  const text = body === null ? null : JSON.stringify(body);
  useEffect(() => {
    if (text === null) {
      setAnswer({ value: null, error: null, isAsking: false });
      return;
    }
    const asking = new AbortController();
    setAnswer((old) => ({ ...old, isAsking: true }));
    const timer = setTimeout(() => void ask<T>(path, text, asking.signal, setAnswer), PAUSE_MS);
    return () => {
      clearTimeout(timer);
      asking.abort();
    };
  }, [path, text]);
  return answer;
}

async function ask<T>(
  path: string,
  body: string,
  signal: AbortSignal,
  onAnswer: (answer: Answer<T>) => void,
): Promise<void> {
  const headers = { "Content-Type": "application/json" };
  try {
    const answer = await request(path, { method: "POST", body, headers, signal });
    onAnswer({ value: (await answer.json()) as T, error: null, isAsking: false });
  } catch (error) {
    if (!signal.aborted) onAnswer({ value: null, error: error as Error, isAsking: false });
  }
}
