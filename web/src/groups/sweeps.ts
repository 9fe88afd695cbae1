// Sweeps as their jobs tell of them, by the labels that `gpuyard sweep` gives them.

import { type Counts, countsOf, grouped, isOver, type Job, labelOf } from "./jobs";

const VALUE_LABEL = "param.";
const PRUNED = "-pruned";

/** What a sweep was asked to do. */
export interface SweepSpec {
  metric: string;
  goal: "minimize" | "maximize";
  take: "last" | "best";
  method: string;
  trials: number | null;
  parameters: Record<string, unknown>;
}

export interface Run {
  number: number;
  job: Job;
  outcome: string;
  parameters: Record<string, string>;
  /** What the metric came to; null if it shows none yet. */
  value: number | null;
}

export interface SweepLine {
  id: string;
  name: string;
  user: string | null;
  createdAt: number;
  state: string;
  /** How many runs are in each state; null where not all of them are known. */
  counts: Counts | null;
}

/** Sweeps, newest first, of their gates and the newest runs of all sweeps. */
export function sweepsOf(gates: readonly Job[], runs: readonly Job[], hasMore: boolean) {
  const oldest = hasMore ? (runs.at(-1)?.created_at ?? Infinity) : -Infinity;
  const ids = grouped(gates, (gate) => labelOf(gate, "sweep-id"));
  return [...ids].map(([id, own]): SweepLine => {
    const [gate, createdAt] = [own[0]!, own.at(-1)!.created_at];
    const outcomes = runs.filter((run) => labelOf(run, "sweep-id") === id).map(outcomeOf);
    const counts = createdAt < oldest ? null : countsOf(outcomes);
    return {
      id,
      name: labelOf(gate, "sweep"),
      user: gate.user ?? null,
      createdAt,
      state: stateOf(gate, counts ?? {}),
      counts,
    };
  });
}

/** `open` while more is to come, then `completed`, `failed` or `stopped`. */
export function stateOf(gate: Job, counts: Counts): string {
  if (!isOver(gate)) return "open";
  if (gate.state === "completed") return "completed";
  return counts["failed"] && !counts["completed"] ? "failed" : "stopped";
}

function outcomeOf(job: Job): string {
  const isPruned = job.name.endsWith(PRUNED) && job.state !== "completed";
  return isPruned ? "pruned" : job.state;
}

/** By job, the best value of its curve; null if it has none. */
export type BestValues = ReadonlyMap<string, number | null>;

/** The runs of a sweep by their numbers. */
export function runsOf(jobs: readonly Job[], spec: SweepSpec, best: BestValues): Run[] {
  const runs = jobs.map((job): Run => {
    const last = job.progress?.metrics?.[spec.metric] ?? null;
    return {
      number: Number(labelOf(job, "sweep-run")),
      job,
      outcome: outcomeOf(job),
      parameters: parametersOf(job),
      value: spec.take === "best" ? (best.get(job.id) ?? last) : last,
    };
  });
  return runs.sort((a, b) => a.number - b.number);
}

function parametersOf(job: Job): Record<string, string> {
  const labels = Object.entries(job.labels ?? {});
  return Object.fromEntries(
    labels
      .filter(([name]) => name.startsWith(VALUE_LABEL))
      .map(([name, value]) => [name.slice(VALUE_LABEL.length), value]),
  );
}

/** Completed runs with a value, the best first. */
export function ranked(runs: readonly Run[], goal: SweepSpec["goal"]): Run[] {
  const sign = goal === "minimize" ? 1 : -1;
  return runs
    .filter((run) => run.outcome === "completed" && run.value !== null)
    .sort((a, b) => sign * (a.value! - b.value!) || a.number - b.number);
}
