// What a job has several of, as people fill it in and as a JobSpec has it.

import type { Schemas } from "../api/client";

/** How a job must have ended before another one starts, by the field of a JobSpec. */
export const ENDS = {
  depends_on: "has completed",
  depends_on_failed: "has ended without completing",
  depends_on_any: "has ended in any way",
} as const;
export type End = keyof typeof ENDS;
const ALL_ENDS = Object.keys(ENDS) as End[];

/** A job that must end first, by its name or its id. */
export interface Parent {
  job: string;
  end: End;
}

export const NO_PARENT: Parent = { job: "", end: "depends_on" };

/** A secret that the program gets: in this variable, or without one in that of its own name. */
export interface SecretUse {
  name: string;
  variable: string;
}

export const NO_SECRET: SecretUse = { name: "", variable: "" };

export type Dependencies = Partial<Record<End, string[]>>;

export function parentsOf(spec: Dependencies): Parent[] {
  return ALL_ENDS.flatMap((end) => (spec[end] ?? []).map((job) => ({ job, end })));
}

export function dependenciesOf(parents: readonly Parent[]): Dependencies {
  const named = parents.filter(({ job }) => job.trim());
  const jobsOf = (end: End) => named.filter((one) => one.end === end).map(({ job }) => job.trim());
  return Object.fromEntries(ALL_ENDS.map((end) => [end, jobsOf(end)]));
}

/** The secrets of these variables. */
export function usesOf(secrets: Record<string, string>): SecretUse[] {
  return Object.entries(secrets).map(([variable, name]) => ({
    name,
    variable: variable === name ? "" : variable,
  }));
}

/** The variable that has a secret; its secret may not be chosen yet. */
export function variableOf({ name, variable }: SecretUse): string {
  return variable.trim() || name;
}

export function secretsOf(uses: readonly SecretUse[]): Record<string, string> | undefined {
  const chosen = uses.filter(({ name }) => name);
  if (chosen.length === 0) return undefined;
  return Object.fromEntries(chosen.map((use) => [variableOf(use), use.name]));
}

/** The names of the secrets that jobs of this user get; the owner of the instance is null. */
export function namesFor(
  user: string | null,
  secrets: readonly Schemas["SecretFacts"][],
): string[] {
  const usable = secrets.filter(({ owner, reserved }) => !reserved && (!owner || owner === user));
  return [...new Set(usable.map(({ name }) => name))];
}

/** What anybody may see of an address; nobody can be told there. */
const SHOWN_ADDRESS = /^(webhook|slack|mail) at /;

/** The addresses of a job, and those of which the server says only so much. */
export function addressesOf(notify: readonly string[]): { known: string[]; withheld: string[] } {
  const isWithheld = (address: string) => SHOWN_ADDRESS.test(address);
  return {
    known: notify.filter((address) => !isWithheld(address)),
    withheld: notify.filter(isWithheld),
  };
}

/** Words with spaces between them. */
export function list(text: string): string[] {
  return text.split(/\s+/).filter(Boolean);
}

export function linesOf(pairs: Record<string, string>): string {
  return Object.entries(pairs)
    .map(([name, value]) => `${name}=${value}`)
    .join("\n");
}

/** The lines of a text in which something stands. */
export function filled(text: string): string[] {
  return text.split("\n").filter((line) => line.trim());
}

/** What lines such as NAME=VALUE mean. */
export function pairsOf(lines: readonly string[]): Record<string, string> {
  const pairs = lines.map((line) => {
    const at = line.indexOf("=");
    // Without a sign it is refused by the server, which names the line.
    return at < 0 ? [line.trim(), ""] : [line.slice(0, at).trim(), line.slice(at + 1)];
  });
  return Object.fromEntries(pairs) as Record<string, string>;
}

/** The labels in a text, one a line. */
export function labelsIn(text: string): Record<string, string> {
  const pairs = Object.entries(pairsOf(filled(text)));
  return Object.fromEntries(pairs.map(([name, value]) => [name, value.trim()]));
}
