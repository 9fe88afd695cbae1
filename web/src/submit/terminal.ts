// The same job from a terminal.

import type { Form } from "./form";
import { type End, filled, labelsIn, list, variableOf } from "./lists";
import { quoted, wordsOf } from "./words";

type Option = [name: string, value: string];

/** The command that submits the job of a form, in a folder that has its files. */
export function terminalCommand(form: Form): string {
  const options = [...optionsOfTimes(form), ...optionsOf(form)];
  const words = options.filter(([, value]) => value).map(([name, v]) => `${name} ${quoted(v)}`);
  if (form.held) words.push("--hold");
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
    ["--gpus", form.tier ? "" : form.gpus],
    ["--gpu-memory", form.tier ? "" : form.memoryGb && `${form.memoryGb}GB`],
    ["--tier", form.tier],
    ["--priority", form.priority === "3" ? "" : form.priority],
    ["--project", form.project],
    ["--cpus", form.cpus],
    ["--memory", form.ramGb && `${form.ramGb}GB`],
    ["--timeout", form.timeout],
    ...each("--env", filled(form.environment)),
    ...each("--secret", form.secrets.filter(({ name }) => name).map(secretOf)),
    ["--checkpoint", form.checkpoint],
    ["--resume-args", form.resumeArgs],
    ...each("--artifacts", list(form.artifacts)),
    ...each("--dataset", list(form.dataset)),
    ["--workspace", form.workspace],
    ["--workdir", form.commit ? form.commitFolder : form.workdir],
    ...each("--label", pairs(labelsIn(form.labels))),
    ...each("--notify", list(form.notify)),
  ];
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
