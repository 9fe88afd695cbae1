// Flows as their jobs tell of them, by the labels that `gpuyard flow` gives them.

import { type Counts, countsOf, grouped, type Job, labelOf } from "./jobs";

export interface Step {
  name: string;
  /** Its newest job; `runs` counts all. */
  job: Job;
  runs: number;
  needs: string[];
}

export interface FlowLine {
  name: string;
  /** Tells apart copies of a flow in different folders. */
  place: string;
  user: string | null;
  createdAt: number;
  steps: Step[];
  counts: Counts;
}

/** Flows, those that ran last first, of the jobs of their steps, newest first. */
export function flowsOf(jobs: readonly Job[]): FlowLine[] {
  const steps = jobs.filter((job) => labelOf(job, "flow-step"));
  const groups = grouped(steps, (job) =>
    JSON.stringify([labelOf(job, "flow"), labelOf(job, "flow-place")]),
  );
  return [...groups.values()].map((own): FlowLine => {
    const newest = own[0]!;
    const steps = stepsOf(own);
    return {
      name: labelOf(newest, "flow"),
      place: labelOf(newest, "flow-place"),
      user: newest.user ?? null,
      createdAt: newest.created_at,
      steps,
      counts: countsOf(steps.map((step) => step.job.state)),
    };
  });
}

function stepsOf(jobs: readonly Job[]): Step[] {
  const steps = new Map<string, Step>();
  for (const job of jobs) {
    const name = labelOf(job, "flow-step");
    const known = steps.get(name);
    if (known) known.runs += 1;
    else steps.set(name, { name, job, runs: 1, needs: needsOf(job) });
  }
  return [...steps.values()].reverse();
}

function needsOf(job: Job): string[] {
  const needs: string[] = [];
  for (;;) {
    const need = labelOf(job, `flow-need-${needs.length}`);
    if (!need) return needs;
    needs.push(need);
  }
}
