// What somebody fills in to submit a job, and the JobSpec that this is.

import type { Schemas } from "../api/client";
import { carried, type Files, isEmpty, NO_FILES, uncarried } from "./carrier";
import {
  addressesOf,
  dependenciesOf,
  type Dependencies,
  filled,
  labelsIn,
  linesOf,
  list,
  pairsOf,
  type Parent,
  parentsOf,
  secretsOf,
  type SecretUse,
  usesOf,
} from "./lists";
import { localTime, momentOf } from "./moments";
import { commandOf, wordsOf } from "./words";

export type Spec = Record<string, unknown>;

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
  tier: string;
  priority: string;
  project: string;
  cpus: string;
  ramGb: string;
  timeout: string;
  environment: string;
  checkpoint: string;
  resumeArgs: string;
  artifacts: string;
  dataset: string;
  workspace: string;
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
  tier: "",
  priority: "3",
  project: "",
  cpus: "",
  ramGb: "",
  timeout: "",
  environment: "",
  checkpoint: "",
  resumeArgs: "",
  artifacts: "",
  dataset: "",
  workspace: "",
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
  ...["notify", "secrets"],
];
// They are of one submission only.
const NOT_KEPT = ["idempotency_key", "user", "program_needs", "kind"];

/** A form that describes the job of `spec`. */
export function formOf(spec: Spec): Form {
  const { command = [], stdin, resources = {}, checkpoint = {}, ...others } = spec as Given;
  const { words, files } = uncarried(command, stdin);
  const gpus = typeof resources.gpus === "number" ? { count: resources.gpus } : resources.gpus;
  const labels = others.labels ?? {};
  const addresses = addressesOf(others.notify ?? []);
  const rest = without(spec, [...SHOWN, ...NOT_KEPT]);
  // An input that is no program's files stays as it is.
  if (stdin && isEmpty(files)) rest["stdin"] = stdin;
  return {
    ...EMPTY,
    files,
    commit: isEmpty(files) ? "" : (labels["git"] ?? ""),
    commitFolder: isEmpty(files) ? "" : (labels["git-folder"] ?? ""),
    command: commandOf(words),
    workdir: others.workdir ?? "",
    name: others.name ?? "",
    gpus: String(gpus ? (gpus.count ?? 1) : 0),
    memoryGb: text(gpus?.memory_gb),
    tier: others.tier ?? "",
    priority: String(others.priority ?? 3),
    project: others.project ?? "",
    cpus: text(resources.cpus),
    ramGb: text(resources.memory_gb),
    timeout: text(others.timeout_s),
    environment: linesOf(others.environment ?? {}),
    checkpoint: checkpoint.path ?? "",
    resumeArgs: commandOf(checkpoint.resume_args ?? []),
    artifacts: (others.artifacts ?? []).join(" "),
    dataset: (others.datasets ?? []).join(" "),
    workspace: others.workspace ?? "",
    array: others.array ?? "",
    after: parentsOf(others),
    held: others.held ?? false,
    deadline: localTime(others.deadline),
    labels: linesOf(isEmpty(files) ? labels : without(labels, ["git", "git-folder"])),
    notify: addresses.known.join("\n"),
    withheld: addresses.withheld,
    secrets: usesOf(others.secrets ?? {}),
    rest: {
      ...rest,
      resources: without(resources, ["gpus", "cpus", "memory_gb"]),
      checkpoint: without(checkpoint, ["path", "resume_args"]),
    },
  };
}

interface Given extends Dependencies {
  command?: string[];
  stdin?: string;
  workdir?: string;
  name?: string;
  resources?: {
    gpus?: number | { count?: number; memory_gb?: number };
    cpus?: number;
    memory_gb?: number;
  };
  tier?: string;
  priority?: number;
  project?: string;
  timeout_s?: number;
  environment?: Record<string, string>;
  checkpoint?: { path?: string; resume_args?: string[] };
  artifacts?: string[];
  datasets?: string[];
  workspace?: string;
  labels?: Record<string, string>;
  array?: string;
  held?: boolean;
  deadline?: number;
  notify?: string[];
  secrets?: Record<string, string>;
}

function text(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : String(value);
}

function without<T>(thing: Record<string, T>, names: readonly string[]): Record<string, T> {
  return Object.fromEntries(Object.entries(thing).filter(([name]) => !names.includes(name)));
}

/** The JobSpec of a form; `needs` is what was read off its program. */
export function specOf(form: Form, needs: unknown = undefined): Spec {
  const { resources, checkpoint, ...rest } = form.rest as Record<string, Spec>;
  const gpus = { count: number(form.gpus), memory_gb: number(form.memoryGb) };
  const words = wordsOf(form.command);
  return given({
    ...rest,
    ...carried(words, form.files),
    workdir: form.workdir,
    name: form.name,
    tier: form.tier,
    priority: number(form.priority),
    project: form.project,
    timeout_s: duration(form.timeout),
    workspace: form.workspace,
    environment: inUse(pairsOf(filled(form.environment))),
    artifacts: list(form.artifacts),
    datasets: list(form.dataset),
    program_needs: needs,
    ...dependenciesOf(form.after),
    array: form.array.trim(),
    held: form.held || undefined,
    // Of a schedule, it is the schedule's.
    deadline: form.times.trim() ? undefined : momentOf(form.deadline),
    labels: inUse(labelsOf(form)),
    notify: list(form.notify),
    secrets: secretsOf(form.secrets),
    resources: given({
      ...resources,
      cpus: number(form.cpus),
      memory_gb: number(form.ramGb),
      // A size says how many GPUs there are.
      gpus: form.tier ? undefined : given(gpus),
    }),
    checkpoint: given({
      ...checkpoint,
      path: form.checkpoint,
      resume_args: form.resumeArgs ? wordsOf(form.resumeArgs) : undefined,
    }),
  });
}

/** The schedule that submits the job of `spec` at the times of a form, here and not in UTC. */
export function scheduleOf(form: Form, spec: Spec): Spec {
  const timezone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return given({
    cron: form.times.trim(),
    timezone,
    overlap: form.overlap,
    starting_deadline_s: duration(form.startingDeadline),
    deadline_s: duration(form.deadline),
    job: spec,
  });
}

/** What the job is labelled with, also by `gpuyard run --git`. */
function labelsOf({ labels, commit, commitFolder }: Form): Record<string, string> {
  const own = labelsIn(labels);
  if (!commit) return own;
  return { ...own, git: commit, ...(commitFolder && { "git-folder": commitFolder }) };
}

function inUse(pairs: Record<string, string>): Record<string, string> | undefined {
  return Object.keys(pairs).length > 0 ? pairs : undefined;
}

/** What is filled in. */
function given(fields: Spec): Spec {
  const isGiven = (value: unknown) =>
    value !== undefined && value !== "" && !(Array.isArray(value) && value.length === 0);
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => isGiven(value)));
}

function number(text: string): number | undefined {
  return text.trim() === "" ? undefined : Number(text);
}

/** Seconds, or words such as 2h: the server knows both. */
function duration(text: string): number | string | undefined {
  const isNumber = text.trim() !== "" && Number.isFinite(Number(text));
  return isNumber ? Number(text) : text.trim();
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
