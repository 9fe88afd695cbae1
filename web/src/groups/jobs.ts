// Jobs that belong together, as their labels say.

import type { Schemas } from "../api/client";
import type { ServerEvent } from "../api/events";
import { count } from "../format";

export type Job = Schemas["Job"];
export type Counts = Record<string, number>;
const OVER = new Set(["completed", "failed", "cancelled", "timed_out"]);

export const isAboutJobs = (event: ServerEvent) =>
  event.kind.startsWith("job.") && event.kind !== "job.progress";

/** Lists of jobs with a label: the server looks through all jobs for them. */
export const SELDOM = { when: isAboutJobs, pauseS: 5 };

/** Which events tell of these jobs, or of new ones. While none is known, any may be one. */
export function isOf(known: { current: ReadonlySet<string> }): (event: ServerEvent) => boolean {
  return ({ kind, job_id: id }) => {
    const isKnown = id !== null && (known.current.size === 0 || known.current.has(id));
    return kind === "job.submitted" || (isKnown && kind.startsWith("job."));
  };
}

/** Whether this names an array, and not one of its tasks. */
export function isArray(reference: string): boolean {
  return /^array_[0-9a-f]+$/.test(reference);
}

/** Where the page shows it. Of an array, which stands in lists as if it were a job, those are
 * its tasks. */
export function screenOf({ id }: { id: string }): string {
  return isArray(id) ? `/jobs?array=${id}` : `/jobs/${id}`;
}

export function isOver(job: Job): boolean {
  return OVER.has(job.state);
}

export function labelOf(job: Job, name: string): string {
  return job.labels?.[name] ?? "";
}

/** How long a job has run, in seconds; null if it has not begun. */
export function ranS(job: Job, now: number): number | null {
  return job.started_at ? (job.ended_at ?? now) - job.started_at : null;
}

/** The jobs by what `keyOf` says of each, in their order. */
export function grouped(jobs: readonly Job[], keyOf: (job: Job) => string): Map<string, Job[]> {
  const groups = new Map<string, Job[]>();
  for (const job of jobs) {
    const group = groups.get(keyOf(job));
    if (group) group.push(job);
    else groups.set(keyOf(job), [job]);
  }
  return groups;
}

export function countsOf(words: readonly string[]): Counts {
  const counts: Counts = {};
  for (const word of words) counts[word] = (counts[word] ?? 0) + 1;
  return counts;
}

/** "8 completed, 2 running" */
export function wordsOf(counts: Counts | null): string {
  if (counts === null) return "–";
  const words = Object.entries(counts).map(
    ([state, number]) => `${count(number)} ${state.replaceAll("_", " ")}`,
  );
  return words.join(", ") || "none yet";
}
