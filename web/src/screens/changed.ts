// What somebody has changed of a job or an array, as the API takes it.

import { localTime, momentOf } from "../submit/moments";

/** What the form shows, all as text. */
export type Shown = {
  name: string;
  priority: string;
  timeout: string;
  deadline: string;
  atMost: string;
};

interface Known {
  name?: string;
  priority: number;
  deadline?: number | null;
  at_most?: number | null;
  spec?: Record<string, unknown> | null;
}

export interface Changes {
  name?: string;
  priority?: number;
  timeout_s?: string;
  deadline?: number | string | null;
  at_most?: number | null;
}

/** What is known of it, as the form shows it at first. */
export function shownOf(known: Known): Shown {
  return {
    name: known.name ?? "",
    priority: String(known.priority),
    timeout: String(known.spec?.["timeout_s"] ?? ""),
    deadline: localTime(known.deadline),
    atMost: String(known.at_most ?? ""),
  };
}

/** Only what differs: a form leaves alone what another has changed meanwhile. */
export function changesOf(before: Shown, after: Shown): Changes {
  const differs = (field: keyof Shown) => after[field].trim() !== before[field];
  return {
    ...(differs("name") && { name: after.name.trim() }),
    ...(differs("priority") && { priority: Number(after.priority) }),
    ...(differs("timeout") && { timeout_s: after.timeout.trim() }),
    ...(differs("deadline") && { deadline: momentOf(after.deadline) || null }),
    ...(differs("atMost") && { at_most: Number(after.atMost) || null }),
  };
}

/** What a job is to have from now on when it is resumed; what is empty stays as it was. */
export interface Resumed {
  timeout: string;
  deadline: string;
  gpus: string;
  priority: string;
}

interface ResumeChanges {
  timeout_s?: string;
  deadline?: number | string;
  gpus?: string;
  priority?: number;
}

export function resumedWith({ timeout, deadline, gpus, priority }: Resumed): ResumeChanges {
  return {
    ...(timeout.trim() && { timeout_s: timeout.trim() }),
    ...(deadline.trim() && { deadline: momentOf(deadline) }),
    ...(gpus.trim() && { gpus: gpus.trim() }),
    ...(priority && { priority: Number(priority) }),
  };
}
