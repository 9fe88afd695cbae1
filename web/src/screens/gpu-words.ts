// What is said of a GPU: what it does, for how long, and what needs attention.

import { duration } from "../format";

/** A GPU as the API tells of it; see `GET /api/v1/gpus`. */
export interface Gpu {
  uuid: string;
  node: string;
  index: number;
  name: string;
  state: string;
  memory_mb: number;
  free_mb: number;
  temperature_c: number | null;
  utilization: number | null;
  problem: string | null;
  draining: boolean;
  warnings: string[];
  job_id: string | null;
  script?: string;
  /** The models on it, that which is shown first. */
  models?: string[];
  /** The other GPUs that have the same model. */
  paired_with?: number[];
  idle_s?: number | null;
  eta_s?: number | null;
  since?: number;
  expected_at?: number;
  progress?: number | null;
  tasks_completed?: number;
}

/** A machine, as far as its disk; see `GET /api/v1/nodes`. */
export interface Disked {
  name: string;
  disk: { problem: string | null } | null;
}

/** The models or the script on it; null if it does nothing, or nothing that one may see. */
export function workOf({ models, paired_with: others, script }: Gpu): string | null {
  const names = (models ?? []).join(" + ");
  if (!names) return script ?? null;
  return others?.length ? `${names} (with GPU ${others.join(", ")})` : names;
}

/** How long it has been idle, or how far its work is, and when that is over. */
export function howFar(gpu: Gpu, now: number): string {
  const { expected_at: expected, idle_s: idleS, progress, eta_s: etaS, since } = gpu;
  if (expected) return `ready in ${duration(expected - now)}`;
  if (typeof idleS === "number") return `idle for ${duration(idleS)}`;
  const words = typeof progress === "number" ? [`${Math.floor(progress * 100)} %`] : [];
  if (etaS) words.push(`${duration(etaS)} left`);
  else if (since) words.push(`for ${duration(now - since)}`);
  return words.join(", ");
}

/** What is wrong now with GPUs and disks. All slices of one GPU say the same, once. */
export function alarmsOf(gpus: readonly Gpu[], machines: readonly Disked[]): string[] {
  const ofGpus = gpus.flatMap(({ node, index, problem, warnings }) => {
    const said = [problem, ...warnings].filter(Boolean).join("; ");
    return said ? [`GPU ${index} of ${node}: ${said}`] : [];
  });
  const ofDisks = machines.flatMap(({ name, disk }) =>
    disk?.problem ? [`${name}: ${disk.problem}`] : [],
  );
  return [...new Set([...ofGpus, ...ofDisks])];
}
