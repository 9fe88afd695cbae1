// What each machine of a job must have.

import type { Form } from "./form";
import { given, inUse, number, type Spec, text, without } from "./values";

export interface Resources {
  gpus?: number | Gpus;
  cpus?: number;
  memory_gb?: number;
  nodes?: number;
}

type Gpus = { count?: number; memory_gb?: number; gpu_class?: string };
type Shown = Pick<Form, "gpus" | "memoryGb" | "gpuClass" | "cpus" | "ramGb" | "nodes">;

export function resourcesIn(resources: Resources): Shown {
  const gpus = gpusIn(resources);
  return {
    gpus: String(gpus ? (gpus.count ?? 1) : 0),
    memoryGb: text(gpus?.memory_gb),
    gpuClass: gpus?.gpu_class ?? "",
    cpus: text(resources.cpus),
    ramGb: text(resources.memory_gb),
    nodes: text(resources.nodes),
  };
}

/** What the form does not show of them. */
export function restOfResources(resources: Resources, tier: string): Spec {
  const others = without(resources as Spec, ["gpus", "cpus", "memory_gb", "nodes"]);
  const gpus = (gpusIn(resources) ?? {}) as Spec;
  const rest = without(gpus, ["count", "memory_gb"]);
  // With a size the form shows nothing of the GPUs; they stay if somebody has chosen their kind.
  const kept = tier && inUse(rest) ? gpus : without(rest, ["gpu_class"]);
  return given({ ...others, gpus: inUse(kept) });
}

export function resourcesOf(form: Form, rest: Spec = {}): Spec {
  const gpus = {
    ...(rest["gpus"] as Spec | undefined),
    count: number(form.gpus),
    memory_gb: number(form.memoryGb),
    gpu_class: form.gpuClass.trim(),
  };
  return given({
    ...rest,
    cpus: number(form.cpus),
    memory_gb: number(form.ramGb),
    nodes: number(form.nodes),
    // A size says how many GPUs there are.
    gpus: form.tier ? rest["gpus"] : given(gpus),
  });
}

function gpusIn({ gpus }: Resources): Gpus | undefined {
  return typeof gpus === "number" ? { count: gpus } : gpus;
}
