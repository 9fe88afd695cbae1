// What somebody fills in to submit a job, and the JobSpec that this is.

import type { Schemas } from "../api/client";
import { carried, type Files, isEmpty, NO_FILES, uncarried } from "./carrier";
import {
  addressesOf,
  dependenciesOf,
  type Dependencies,
  labelsIn,
  linesOf,
  list,
  type Parent,
  parentsOf,
  secretsOf,
  type SecretUse,
  usesOf,
} from "./lists";
import { localTime, momentOf } from "./moments";
import {
  type Kept,
  keptIn,
  keptOf,
  type Places,
  placesIn,
  placesOf,
  restOfAllowed,
  restOfCheckpoint,
  type Tries,
  triesIn,
  triesOf,
} from "./parts";
import { type Resources, resourcesIn, resourcesOf, restOfResources } from "./resources";
import { given, inUse, number, quantity, type Spec, without } from "./values";
import { commandOf, wordsOf } from "./words";

export interface Form {
  files: Files;
  /** The template that the files are of, as long as nobody has changed them. */
  template: string;
  /** The commit that they are of, likewise (its label), and the folder of it. */
  commit: string;
  commitFolder: string;
  command: string;
  workdir: string;
  name: string;
  gpus: string;
  memoryGb: string;
  gpuClass: string;
  tier: string;
  priority: string;
  project: string;
  cpus: string;
  ramGb: string;
  /** How many machines it has at once. */
  nodes: string;
  image: string;
  provider: string;
  regions: string;
  /** At most so much an hour. */
  maxPrice: string;
  strategy: string;
  spot: boolean;
  /** Whether it may also run where verification has failed. */
  quarantined: boolean;
  timeout: string;
  retries: string;
  /** After which ends; none: after all. */
  retryOn: readonly string[];
  /** How much of its output is kept. */
  logLimit: string;
  preemptible: boolean;
  seed: string;
  environment: string;
  checkpoint: string;
  resumeArgs: string;
  /** What makes its program save, and how long that may take. */
  signal: string;
  grace: string;
  artifacts: string;
  artifactsAlways: boolean;
  dataset: string;
  workspace: string;
  /** A file of its program; or what names the packages of a copied job. */
  packages: string;
  /** Indices: it runs once for each of them. */
  array: string;
  after: readonly Parent[];
  held: boolean;
  /** A date with a time of here, or so long from now; of a schedule, after each of its times. */
  deadline: string;
  /** A cron expression: it is submitted at each of these times. */
  times: string;
  /** What happens at a time when the last one has not ended; empty: nothing. */
  overlap: string;
  /** How late it may still be submitted. */
  startingDeadline: string;
  labels: string;
  /** Whom to tell of its end; and whom the copied job told, as far as the server says that. */
  notify: string;
  withheld: readonly string[];
  secrets: readonly SecretUse[];
  /** What the job has and this form does not show. */
  rest: Spec;
}

export const EMPTY: Form = {
  files: NO_FILES,
  template: "",
  commit: "",
  commitFolder: "",
  command: "",
  workdir: "",
  name: "",
  gpus: "1",
  memoryGb: "",
  gpuClass: "",
  tier: "",
  priority: "3",
  project: "",
  cpus: "",
  ramGb: "",
  nodes: "",
  image: "",
  provider: "",
  regions: "",
  maxPrice: "",
  strategy: "",
  spot: false,
  quarantined: false,
  timeout: "",
  retries: "",
  retryOn: [],
  logLimit: "",
  preemptible: false,
  seed: "",
  environment: "",
  checkpoint: "",
  resumeArgs: "",
  signal: "",
  grace: "",
  artifacts: "",
  artifactsAlways: false,
  dataset: "",
  workspace: "",
  packages: "",
  array: "",
  after: [],
  held: false,
  deadline: "",
  times: "",
  overlap: "",
  startingDeadline: "",
  labels: "",
  notify: "",
  withheld: [],
  secrets: [],
  rest: {},
};

const SHOWN = [
  ...["command", "stdin", "workdir", "name", "resources", "tier", "priority", "project"],
  ...["timeout_s", "environment", "checkpoint", "artifacts", "datasets", "workspace", "labels"],
  ...["array", "depends_on", "depends_on_failed", "depends_on_any", "held", "deadline"],
  ...["notify", "secrets", "image", "provider", "allowed", "max_price", "strategy", "spot"],
  ...["retry_count", "retry_on", "log_limit_gb", "preemptible", "artifacts_always", "packages"],
];
// They are of one submission only.
const NOT_KEPT = ["idempotency_key", "user", "program_needs", "kind"];

/** A form that describes the job of `spec`. */
export function formOf(spec: Spec): Form {
  const { command = [], stdin, resources = {}, ...others } = spec as Given;
  const { words, files } = uncarried(command, stdin);
  const labels = others.labels ?? {};
  const addresses = addressesOf(others.notify ?? []);
  return {
    ...EMPTY,
    files,
    commit: isEmpty(files) ? "" : (labels["git"] ?? ""),
    commitFolder: isEmpty(files) ? "" : (labels["git-folder"] ?? ""),
    command: commandOf(words),
    name: others.name ?? "",
    tier: others.tier ?? "",
    priority: String(others.priority ?? 3),
    project: others.project ?? "",
    ...resourcesIn(resources),
    ...placesIn(others),
    ...triesIn(others),
    ...keptIn(others),
    array: others.array ?? "",
    after: parentsOf(others),
    held: others.held ?? false,
    deadline: localTime(others.deadline),
    labels: linesOf(isEmpty(files) ? labels : without(labels, ["git", "git-folder"])),
    notify: addresses.known.join("\n"),
    withheld: addresses.withheld,
    secrets: usesOf(others.secrets ?? {}),
    rest: restOf(spec, files),
  };
}

/** What the form does not show of a job. */
function restOf(spec: Spec, files: Files): Spec {
  const { stdin, resources = {}, allowed, checkpoint, tier = "" } = spec as Given;
  return {
    ...without(spec, [...SHOWN, ...NOT_KEPT]),
    // An input that is no program's files stays as it is.
    ...(stdin && isEmpty(files) && { stdin }),
    resources: restOfResources(resources, tier),
    allowed: restOfAllowed(allowed),
    checkpoint: restOfCheckpoint(checkpoint),
  };
}

interface Given extends Dependencies, Places, Tries, Kept {
  command?: string[];
  stdin?: string;
  name?: string;
  resources?: Resources;
  tier?: string;
  priority?: number;
  project?: string;
  labels?: Record<string, string>;
  array?: string;
  held?: boolean;
  deadline?: number;
  notify?: string[];
  secrets?: Record<string, string>;
}

/** The JobSpec of a form; `needs` is what was read off its program. */
export function specOf(form: Form, needs: unknown = undefined): Spec {
  const { resources, allowed, checkpoint, ...rest } = form.rest as Record<string, Spec>;
  return given({
    ...rest,
    ...carried(wordsOf(form.command), form.files),
    name: form.name,
    tier: form.tier,
    priority: number(form.priority),
    project: form.project,
    program_needs: needs,
    resources: resourcesOf(form, resources),
    ...placesOf(form, allowed),
    ...triesOf(form),
    ...keptOf(form, checkpoint),
    ...dependenciesOf(form.after),
    array: form.array.trim(),
    held: form.held || undefined,
    // Of a schedule, it is the schedule's.
    deadline: form.times.trim() ? undefined : momentOf(form.deadline),
    labels: inUse(labelsOf(form)),
    notify: list(form.notify),
    secrets: secretsOf(form.secrets),
  });
}

/** The schedule that submits the job of `spec` at the times of a form, here and not in UTC. */
export function scheduleOf(form: Form, spec: Spec): Spec {
  const timezone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return given({
    cron: form.times.trim(),
    timezone,
    overlap: form.overlap,
    starting_deadline_s: quantity(form.startingDeadline),
    deadline_s: quantity(form.deadline),
    job: spec,
  });
}

/** What the job is labelled with, also by `gpuyard run --git`. */
function labelsOf({ labels, commit, commitFolder }: Form): Record<string, string> {
  const own = labelsIn(labels);
  if (!commit) return own;
  return { ...own, git: commit, ...(commitFolder && { "git-folder": commitFolder }) };
}

/** What the recommendation is asked about: null if the command starts none of the files. */
export function programOf(form: Form): Schemas["Program"] | null {
  const words = wordsOf(form.command);
  const at = words.findIndex((word) => /\.(py|ipynb)$/.test(word) && word in form.files.text);
  if (at < 0) return null;
  const program = {
    files: form.files.text,
    entry: words[at]!,
    arguments: words.slice(at + 1),
    launcher: words.slice(0, at),
    ...(form.project ? { project: form.project } : {}),
  };
  return program as Schemas["Program"];
}

/** How to start a program of these files, as long as nobody has said: the one that is called
 * like a program, or, `among` few, the first one. */
export function startOf(names: readonly string[], among: readonly string[] = names): string {
  const entry = ["train.py", "main.py"].find((name) => names.includes(name)) ?? among[0] ?? "";
  if (entry.endsWith(".py")) return `python3 ${entry}`;
  return entry.endsWith(".sh") ? `sh ${entry}` : "";
}
