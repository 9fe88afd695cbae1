// What the server says is wrong with a new job, by the field of the form that it is about.

import type { Schemas } from "../api/client";
import type { Form } from "./form";
import { filled, variableOf } from "./lists";
import { isStored } from "./packages";

type FieldFault = Schemas["FieldFault"];
export type Faults = Partial<Record<keyof Form, string>>;

/** Where the form shows what a field of the API holds. Of two, the longer path counts. */
const PLACES: Record<string, keyof Form> = {
  command: "command",
  workdir: "workdir",
  name: "name",
  tier: "tier",
  "resources.gpus": "gpus",
  "resources.gpus.memory_gb": "memoryGb",
  "resources.gpus.gpu_class": "gpuClass",
  "resources.cpus": "cpus",
  "resources.memory_gb": "ramGb",
  "resources.nodes": "nodes",
  image: "image",
  provider: "provider",
  "allowed.regions": "regions",
  max_price: "maxPrice",
  strategy: "strategy",
  priority: "priority",
  project: "project",
  timeout_s: "timeout",
  retry_count: "retries",
  retry_on: "retryOn",
  log_limit_gb: "logLimit",
  seed: "seed",
  environment: "environment",
  checkpoint: "checkpoint",
  "checkpoint.resume_args": "resumeArgs",
  "checkpoint.signal": "signal",
  "checkpoint.grace_s": "grace",
  artifacts: "artifacts",
  artifacts_always: "artifacts",
  packages: "packages",
  datasets: "dataset",
  workspace: "workspace",
  array: "array",
  depends_on: "after",
  depends_on_failed: "after",
  depends_on_any: "after",
  deadline: "deadline",
  deadline_s: "deadline",
  cron: "times",
  overlap: "overlap",
  starting_deadline_s: "startingDeadline",
  labels: "labels",
  notify: "notify",
  secrets: "secrets",
};

/** What is wrong at each field. What is wrong elsewhere is left out. */
export function faultsByField(faults: readonly FieldFault[]): Faults {
  const found: Faults = {};
  for (const fault of faults) {
    const { place, rest } = placeOf(fault.field);
    if (place === undefined) continue;
    const before = found[place];
    found[place] = [...(before ? [before] : []), inWords(rest, fault)].join("; ");
  }
  return found;
}

/** What is still wrong with a form: of what was changed since it was refused, nobody knows. */
export function stillWrong(faults: readonly FieldFault[], refused: Form, form: Form): Faults {
  const all = Object.entries(faultsByField(faults)) as [keyof Form, string][];
  return Object.fromEntries(all.filter(([name]) => form[name] === refused[name]));
}

/** What the server would not say as plainly. */
export function ownFaults(form: Form): FieldFault[] {
  const faults: FieldFault[] = [];
  if (form.array.trim() && form.times.trim()) {
    const fault = "does not go with times at which it comes again";
    faults.push({ field: "array", fault, remedy: "give one of them" });
  }
  const variables = form.secrets.map(variableOf).filter(Boolean);
  for (const variable of new Set(variables.filter((one, at) => variables.indexOf(one) < at))) {
    const fault = "would get two secrets";
    faults.push({ field: `secrets.${variable}`, fault, remedy: "give it one" });
  }
  for (const use of form.secrets.filter(({ name, variable }) => !name && variable.trim())) {
    const fault = "has no secret yet";
    faults.push({ field: `secrets.${variableOf(use)}`, fault, remedy: "choose one" });
  }
  // As in the command: nobody means an empty value by a name alone.
  for (const line of filled(form.environment).filter((one) => !one.includes("="))) {
    const fault = `'${line.trim()}' has no value`;
    faults.push({ field: "environment", fault, remedy: "write NAME=VALUE" });
  }
  // What the server keeps of it are variables, which may hold anything.
  if (form.seed.trim() && !isSeed(form.seed.trim())) {
    faults.push({ field: "seed", fault: "is no seed", remedy: "give a whole number below 2^32" });
  }
  if (form.packages && !isStored(form.packages) && !(form.packages in form.files.text)) {
    const fault = `its program has no file ${form.packages} any more`;
    faults.push({ field: "packages", fault, remedy: "choose another" });
  }
  return faults;
}

function isSeed(text: string): boolean {
  return /^\d{1,10}$/.test(text) && Number(text) < 2 ** 32;
}

/** A fault as the server writes it. */
export function inWords(field: string, { fault, remedy }: FieldFault): string {
  return `${field && `${field}: `}${fault}${remedy && ` (${remedy})`}`;
}

/** The field of the form, and what the path of the API says besides. */
function placeOf(path: string): { place: keyof Form | undefined; rest: string } {
  // That of a schedule has its job in a field.
  const steps = path.replace(/^job\./, "").split(/[.[\]]+/);
  for (let length = steps.length; length > 0; length--) {
    const place = PLACES[steps.slice(0, length).join(".")];
    // People count no lines from zero.
    const named = steps.slice(length).filter((step) => !/^\d*$/.test(step));
    if (place) return { place, rest: named.join(".") };
  }
  return { place: undefined, rest: "" };
}
