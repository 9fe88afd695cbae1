// What somebody fills in to submit a job, and the JobSpec that this is.

import type { Schemas } from "../api/client";
import { carried, type Files, isEmpty, NO_FILES, uncarried } from "./carrier";
import { commandOf, quoted, wordsOf } from "./words";

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
  /** A cron expression: it is submitted at each of these times. */
  times: string;
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
  times: "",
  rest: {},
};

const SHOWN = [
  ...["command", "stdin", "workdir", "name", "resources", "tier", "priority", "project"],
  ...["timeout_s", "environment", "checkpoint", "artifacts", "datasets", "workspace", "labels"],
];
// They are of one submission only.
const NOT_KEPT = ["idempotency_key", "user", "program_needs", "kind"];

/** A form that describes the job of `spec`. */
export function formOf(spec: Spec): Form {
  const { command = [], stdin, resources = {}, checkpoint = {}, ...others } = spec as Given;
  const { words, files } = uncarried(command, stdin);
  const gpus = typeof resources.gpus === "number" ? { count: resources.gpus } : resources.gpus;
  const labels = others.labels ?? {};
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
    environment: Object.entries(others.environment ?? {})
      .map(([name, value]) => `${name}=${value}`)
      .join("\n"),
    checkpoint: checkpoint.path ?? "",
    resumeArgs: commandOf(checkpoint.resume_args ?? []),
    artifacts: (others.artifacts ?? []).join(" "),
    dataset: (others.datasets ?? []).join(" "),
    workspace: others.workspace ?? "",
    rest: {
      ...rest,
      labels: isEmpty(files) ? labels : without(labels, ["git", "git-folder"]),
      resources: without(resources, ["gpus", "cpus", "memory_gb"]),
      checkpoint: without(checkpoint, ["path", "resume_args"]),
    },
  };
}

interface Given {
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
}

function text(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : String(value);
}

function without(thing: object, names: readonly string[]): Spec {
  return Object.fromEntries(Object.entries(thing).filter(([name]) => !names.includes(name)));
}

/** The JobSpec of a form; `needs` is what was read off its program. */
export function specOf(form: Form, needs: unknown = undefined): Spec {
  const { resources, checkpoint, labels, ...rest } = form.rest as Record<string, Spec>;
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
    environment: environmentOf(form.environment),
    artifacts: list(form.artifacts),
    datasets: list(form.dataset),
    program_needs: needs,
    labels: labelsOf(form, labels),
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
  return { cron: form.times.trim(), timezone, job: spec };
}

/** What the job is labelled with, also by `gpuyard run --git`. */
function labelsOf({ commit, commitFolder }: Form, others: Spec | undefined): Spec | undefined {
  if (!commit) return others;
  return { ...others, git: commit, ...(commitFolder && { "git-folder": commitFolder }) };
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

function list(text: string): string[] {
  return text.split(/\s+/).filter(Boolean);
}

function environmentOf(text: string): Record<string, string> | undefined {
  const lines = text.split("\n").filter((line) => line.trim());
  if (lines.length === 0) return undefined;
  const pairs = lines.map((line) => {
    const at = line.indexOf("=");
    // Without a sign it is refused by the server, which names the line.
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1)];
  });
  return Object.fromEntries(pairs) as Record<string, string>;
}

/** The same from a terminal, in a folder that has the files. */
export function terminalCommand(form: Form): string {
  const options: [string, string][] = [
    ["--schedule", form.times.trim()],
    ["--git", form.commit],
    ["--name", form.name],
    ["--gpus", form.tier ? "" : form.gpus],
    ["--gpu-memory", form.tier ? "" : form.memoryGb && `${form.memoryGb}GB`],
    ["--tier", form.tier],
    ["--priority", form.priority === "3" ? "" : form.priority],
    ["--project", form.project],
    ["--cpus", form.cpus],
    ["--memory", form.ramGb && `${form.ramGb}GB`],
    ["--timeout", form.timeout],
    ...form.environment
      .split("\n")
      .filter(Boolean)
      .map((line): [string, string] => ["--env", line]),
    ["--checkpoint", form.checkpoint],
    ["--resume-args", form.resumeArgs],
    ...list(form.artifacts).map((pattern): [string, string] => ["--artifacts", pattern]),
    ...list(form.dataset).map((name): [string, string] => ["--dataset", name]),
    ["--workspace", form.workspace],
    ["--workdir", form.commit ? form.commitFolder : form.workdir],
  ];
  const words = options.filter(([, value]) => value).map(([name, v]) => `${name} ${quoted(v)}`);
  const command = form.command ? wordsOf(form.command).map(quoted).join(" ") : "…";
  const start = form.times.trim() ? "gpuyard run" : "gpuyard run --detach";
  const run = [start, ...words, "--", command].join(" ");
  const { template } = form;
  return template ? `gpuyard new ${template} my-${template}\ncd my-${template}\n${run}` : run;
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
