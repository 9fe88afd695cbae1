// The parts of the form that are folded away, as fields of a JobSpec: where a job may run, how
// often it is tried, and what is kept of it.

import type { Form } from "./form";
import { filled, linesOf, list, pairsOf } from "./lists";
import { isStored } from "./packages";
import { given, inUse, number, quantity, type Spec, text, without } from "./values";
import { commandOf, wordsOf } from "./words";

/** After which ends a job may be tried again. */
export const CAUSES = {
  timeout: "it took too long",
  failure: "it failed",
  lost: "its place was lost",
} as const;
/** The variables in which a program finds its seed. */
const SEED = ["GPUYARD_SEED", "PYTHONHASHSEED"] as const;
type Shown<Name extends keyof Form> = Pick<Form, Name>;

// --- where ---

export interface Places {
  image?: string;
  provider?: string;
  allowed?: { regions?: string[]; quarantined?: boolean };
  max_price?: string | number;
  strategy?: string;
  spot?: boolean;
}

export function placesIn(
  spec: Places,
): Shown<"image" | "provider" | "regions" | "quarantined" | "maxPrice" | "strategy" | "spot"> {
  return {
    image: spec.image ?? "",
    provider: spec.provider ?? "",
    regions: (spec.allowed?.regions ?? []).join(" "),
    quarantined: spec.allowed?.quarantined ?? false,
    maxPrice: text(spec.max_price),
    strategy: spec.strategy ?? "",
    spot: spec.spot ?? false,
  };
}

export function restOfAllowed(allowed: Places["allowed"] = {}): Spec {
  return without(allowed as Spec, ["regions", "quarantined"]);
}

export function placesOf(form: Form, rest: Spec = {}): Spec {
  const allowed = given({
    ...rest,
    regions: list(form.regions),
    quarantined: form.quarantined || undefined,
  });
  return {
    image: form.image.trim(),
    provider: form.provider,
    allowed: inUse(allowed),
    // A figure with its decimals, as the server keeps money.
    max_price: form.maxPrice.trim(),
    strategy: form.strategy,
    spot: form.spot || undefined,
  };
}

// --- limits and tries ---

export interface Tries {
  timeout_s?: number;
  retry_count?: number;
  retry_on?: string[];
  log_limit_gb?: number;
  preemptible?: boolean;
  environment?: Record<string, string>;
}

export function triesIn(
  spec: Tries,
): Shown<"timeout" | "retries" | "retryOn" | "logLimit" | "preemptible" | "seed" | "environment"> {
  const environment = spec.environment ?? {};
  const seed = seedIn(environment);
  return {
    timeout: text(spec.timeout_s),
    retries: text(spec.retry_count),
    retryOn: spec.retry_on ?? [],
    logLimit: text(spec.log_limit_gb),
    preemptible: spec.preemptible ?? false,
    seed,
    environment: linesOf(seed ? without(environment, SEED) : environment),
  };
}

export function triesOf(form: Form): Spec {
  const seed = form.seed.trim();
  const ofSeed = Object.fromEntries(seed ? SEED.map((name) => [name, seed]) : []);
  return {
    timeout_s: quantity(form.timeout),
    retry_count: number(form.retries),
    retry_on: form.retryOn,
    log_limit_gb: quantity(form.logLimit),
    preemptible: form.preemptible || undefined,
    environment: inUse({ ...ofSeed, ...pairsOf(filled(form.environment)) }),
  };
}

/** The seed in these variables, if it is one as `gpuyard run` sets it. */
function seedIn(environment: Record<string, string>): string {
  const [seed, other] = SEED.map((name) => environment[name] ?? "");
  return seed === other && /^\d+$/.test(seed!) ? seed! : "";
}

// --- checkpoints and files ---

export interface Kept {
  checkpoint?: Checkpoint;
  artifacts?: string[];
  artifacts_always?: boolean;
  datasets?: string[];
  workspace?: string;
  packages?: string;
  workdir?: string;
}

type Checkpoint = {
  path?: string;
  resume_args?: string[];
  signal?: string;
  grace_s?: number;
};

export function keptIn(
  spec: Kept,
): Shown<
  | ("checkpoint" | "resumeArgs" | "signal" | "grace" | "artifacts" | "artifactsAlways")
  | ("dataset" | "workspace" | "packages" | "workdir")
> {
  const checkpoint = spec.checkpoint ?? {};
  return {
    checkpoint: checkpoint.path ?? "",
    resumeArgs: commandOf(checkpoint.resume_args ?? []),
    signal: checkpoint.signal ?? "",
    grace: text(checkpoint.grace_s),
    artifacts: (spec.artifacts ?? []).join(" "),
    artifactsAlways: spec.artifacts_always ?? false,
    dataset: (spec.datasets ?? []).join(" "),
    workspace: spec.workspace ?? "",
    packages: spec.packages ?? "",
    workdir: spec.workdir ?? "",
  };
}

export function restOfCheckpoint(checkpoint: Checkpoint = {}): Spec {
  return without(checkpoint as Spec, ["path", "resume_args", "signal", "grace_s"]);
}

export function keptOf(form: Form, rest: Spec = {}): Spec {
  const checkpoint = given({
    ...rest,
    path: form.checkpoint,
    resume_args: form.resumeArgs ? wordsOf(form.resumeArgs) : undefined,
    signal: form.signal.trim(),
    grace_s: quantity(form.grace),
  });
  return {
    checkpoint,
    artifacts: list(form.artifacts),
    artifacts_always: form.artifactsAlways || undefined,
    datasets: list(form.dataset),
    workspace: form.workspace,
    // What a file of the program names is stored when the job is submitted.
    packages: isStored(form.packages) ? form.packages : undefined,
    workdir: form.workdir,
  };
}
