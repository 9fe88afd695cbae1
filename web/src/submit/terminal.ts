// The same job from a terminal.

import type { Form } from "./form";
import { type End, filled, labelsIn, list, variableOf } from "./lists";
import { isStored } from "./packages";
import { quoted, wordsOf } from "./words";

type Option = [name: string, value: string];

/** The command that submits the job of a form, in a folder that has its files. */
export function terminalCommand(form: Form): string {
  const options = [...optionsOfTimes(form), ...optionsOf(form)];
  const words = options.filter(([, value]) => value).map(([name, v]) => `${name} ${quoted(v)}`);
  words.push(...flagsOf(form));
  const command = form.command ? wordsOf(form.command).map(quoted).join(" ") : "…";
  const start = form.times.trim() ? "gpuyard run" : "gpuyard run --detach";
  const run = [start, ...words, "--", command].join(" ");
  const { template } = form;
  return template ? `gpuyard new ${template} my-${template}\ncd my-${template}\n${run}` : run;
}

function optionsOf(form: Form): Option[] {
  return [
    ["--git", form.commit],
    ["--name", form.name],
    ...optionsOfGpus(form),
    ["--tier", form.tier],
    ["--priority", form.priority === "3" ? "" : form.priority],
    ["--project", form.project],
    ["--cpus", form.cpus],
    ["--memory", form.ramGb && `${form.ramGb}GB`],
    ...optionsOfPlaces(form),
    ...optionsOfTries(form),
    ...each("--secret", form.secrets.filter(({ name }) => name).map(secretOf)),
    ...optionsOfFiles(form),
    ...each("--label", pairs(labelsIn(form.labels))),
    ...each("--notify", list(form.notify)),
  ];
}

/** A size says what they are. */
function optionsOfGpus(form: Form): Option[] {
  if (form.tier) return [];
  return [
    ["--gpus", form.gpus],
    ["--gpu-memory", form.memoryGb && `${form.memoryGb}GB`],
    ["--gpu-class", form.gpuClass.trim()],
  ];
}

/** Where it may run. */
function optionsOfPlaces(form: Form): Option[] {
  return [
    ["--nodes", form.nodes],
    ["--image", form.image.trim()],
    ["--provider", form.provider],
    ...each("--region", list(form.regions)),
    ["--max-price", form.maxPrice.trim()],
    ["--strategy", form.strategy],
  ];
}

/** How long and how often it may run, and its variables. */
function optionsOfTries(form: Form): Option[] {
  return [
    ["--timeout", form.timeout],
    ["--retries", form.retries],
    ["--retry-on", form.retryOn.join(",")],
    ["--log-limit-gb", form.logLimit.trim()],
    ["--seed", form.seed.trim()],
    ...each("--env", filled(form.environment)),
  ];
}

/** What it saves, keeps and finds. */
function optionsOfFiles(form: Form): Option[] {
  return [
    ["--checkpoint", form.checkpoint],
    ["--resume-args", form.resumeArgs],
    ["--checkpoint-signal", form.signal.trim()],
    ["--grace", form.grace.trim()],
    ...each("--artifacts", list(form.artifacts)),
    ...each("--dataset", list(form.dataset)),
    ["--workspace", form.workspace],
    // Nobody but the server has the list of a copied job.
    ["--packages", isStored(form.packages) ? "" : form.packages],
    ["--workdir", form.commit ? form.commitFolder : form.workdir],
  ];
}

function flagsOf(form: Form): string[] {
  const flags: [string, boolean][] = [
    ["--artifacts-always", form.artifactsAlways],
    ["--spot", form.spot],
    ["--allow-quarantined", form.quarantined],
    ["--preemptible", form.preemptible],
    ["--hold", form.held],
  ];
  return flags.filter(([, isSet]) => isSet).map(([name]) => name);
}

/** When it starts, how often, and until when. */
function optionsOfTimes(form: Form): Option[] {
  const isScheduled = form.times.trim() !== "";
  const after = (end: End) =>
    form.after.filter((one) => one.end === end).map(({ job }) => job.trim());
  return [
    ["--schedule", form.times.trim()],
    ["--overlap", isScheduled ? form.overlap : ""],
    ["--starting-deadline", isScheduled ? form.startingDeadline.trim() : ""],
    ["--array", form.array.trim()],
    ...each("--after", after("depends_on")),
    ...each("--after-failed", after("depends_on_failed")),
    ...each("--after-any", after("depends_on_any")),
    ["--deadline", form.deadline.trim()],
  ];
}

function each(name: string, values: readonly string[]): Option[] {
  return values.map((value) => [name, value]);
}

function pairs(values: Record<string, string>): string[] {
  return Object.entries(values).map(([name, value]) => `${name}=${value}`);
}

function secretOf(use: Form["secrets"][number]): string {
  const variable = variableOf(use);
  return variable === use.name ? variable : `${variable}=${use.name}`;
}
