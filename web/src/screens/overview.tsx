// What the instance does now: GPUs, the queue, what needs attention, what it costs.

import type { Schemas } from "../api/client";
import * as format from "../format";
import { screenOf } from "../groups/jobs";
import { type DaySpent, lastDay } from "../groups/spending";
import { serverNow, useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import { type Gpu, howFar, workOf } from "./gpu-words";
import { Attention } from "./overview-attention";
import { Batches } from "./overview-batches";
import { JobThroughput } from "./overview-throughput";
import {
  Badge,
  Card,
  Empty,
  ErrorNote,
  Found,
  Link,
  Meter,
  StateBadge,
  type Tone,
} from "../ui/parts";

interface Items<T> {
  items: T[];
}

type Job = Schemas["Job"];
const WATCHED = { isWatched: true };

export function OverviewScreen() {
  const gpus = useResource<Items<Gpu>>("/api/v1/gpus", {}, WATCHED);
  const about = useResource<{ jobs: Record<string, number> }>("/api/v1/server", {}, WATCHED);
  return (
    <>
      <div class="head">
        <h1>Overview</h1>
        <span class="spring" />
        {session.may("member") && (
          <Link to="/submit" class="button primary">
            Submit a job
          </Link>
        )}
      </div>
      <ErrorNote error={gpus.error ?? about.error} />
      <Counts jobs={about.value?.jobs ?? null} />
      <section class="stack">
        <h2>GPUs</h2>
        {gpus.value && <Gpus gpus={gpus.value.items} />}
      </section>
      <div class="columns top">
        <Recent />
        <div class="stack spaced">
          <JobThroughput />
          <Batches />
          <Spending />
          <Attention gpus={gpus.value?.items ?? []} />
        </div>
      </div>
    </>
  );
}

const SHOWN_STATES = { running: "busy", queued: "", completed: "good", failed: "bad" };

function Counts({ jobs }: { jobs: Record<string, number> | null }) {
  if (jobs === null) return null;
  return (
    <div class="tiles counts">
      {Object.entries(SHOWN_STATES).map(([state, tone]) => (
        <Link key={state} to={`/jobs?state=${state}`} class={`card count ${tone}`}>
          <span class="figure">{format.count(jobs[state] ?? 0)}</span>
          <span class="quiet">{state}</span>
        </Link>
      ))}
    </div>
  );
}

function Gpus({ gpus }: { gpus: Gpu[] }) {
  if (gpus.length === 0) {
    return (
      <Empty>
        No GPU is known here. Jobs without GPUs run; <code>gpuyard nodes invite</code> adds a
        machine.
      </Empty>
    );
  }
  return (
    <div class="tiles">
      {gpus.map((gpu) => (
        <GpuTile key={gpu.uuid} gpu={gpu} />
      ))}
    </div>
  );
}

function toneOf(gpu: Gpu): Tone {
  if (gpu.problem) return "bad";
  if (gpu.draining) return "warn";
  return gpu.state === "idle" ? "good" : "busy";
}

/** "busy", "model ready": a tile names the job or the model, so nobody needs the kind. */
function stateOf({ state }: Gpu): string {
  return state.replace("script_", "").replace("llm_", "model ").replaceAll("_", " ");
}

function GpuTile({ gpu }: { gpu: Gpu }) {
  const now = useNow();
  const used = gpu.memory_mb - gpu.free_mb;
  const work = workOf(gpu);
  return (
    <article class="card gpu" aria-label={`GPU ${gpu.index} of ${gpu.node}`}>
      <div class="row wide">
        <strong class="cut">
          {gpu.node} · {gpu.index}
        </strong>
        <Badge tone={toneOf(gpu)}>{gpu.problem ? "problem" : stateOf(gpu)}</Badge>
      </div>
      <div class="row wide quiet">
        <span class="cut">{gpu.name}</span>
        {gpu.tasks_completed !== undefined && <span>{format.count(gpu.tasks_completed)} done</span>}
      </div>
      <div class="what">
        {gpu.job_id ? (
          <Link to={`/jobs/${gpu.job_id}`} class="cut">
            {work ?? format.shortId(gpu.job_id)}
          </Link>
        ) : (
          <span class="quiet cut">
            {gpu.problem ?? work ?? (gpu.state === "idle" ? "free" : "")}
          </span>
        )}
        <span class="quiet">{howFar(gpu, now)}</span>
      </div>
      {gpu.job_id && typeof gpu.progress === "number" ? (
        <Meter share={gpu.progress} label="Progress of its job" />
      ) : (
        <Meter share={used / gpu.memory_mb} label="Memory in use" quiet />
      )}
      <div class="row wide quiet small">
        <span>
          {format.memory(used)} of {format.memory(gpu.memory_mb)}
        </span>
        <span>{gpu.temperature_c === null ? "" : `${gpu.temperature_c} °C`}</span>
        <span>{gpu.utilization === null ? "" : `${Math.round(gpu.utilization * 100)} %`}</span>
      </div>
    </article>
  );
}

function Recent() {
  const jobs = useResource<Items<Job>>("/api/v1/jobs", { limit: 8, folded: true }, WATCHED);
  const now = useNow();
  return (
    <Card title="Newest jobs" action={<Link to="/jobs">All jobs</Link>}>
      <Found of={jobs} />
      {jobs.value?.items.length === 0 && <Empty>Nothing was submitted yet.</Empty>}
      {jobs.value?.items.map((job) => (
        <div key={job.id} class="row wide">
          <Link to={screenOf(job)} class="cut">
            {job.name || format.shortId(job.id)}
          </Link>
          <span class="row">
            <span class="quiet small">{format.ago(job.created_at, now)}</span>
            <StateBadge state={job.state} isHeld={job.held} />
          </span>
        </div>
      ))}
    </Card>
  );
}

function Spending() {
  const today = useResource<Schemas["CostReport"]>("/api/v1/costs", { by: "day" }, { everyS: 30 });
  const budgets = useResource<{ items: Schemas["Budget"][] }>(
    "/api/v1/budgets",
    {},
    { everyS: 30 },
  );
  return (
    <Card title="Spending">
      <Found of={today} />
      {today.value && <Spent of={lastDay(today.value)} />}
      {budgets.value?.items.map((budget) => (
        <BudgetLine key={budget.name} budget={budget} />
      ))}
    </Card>
  );
}

function Spent({ of: { day, amount, currency } }: { of: DaySpent }) {
  return (
    <div class="row wide">
      <span class="quiet">{whenOf(day)}</span>
      <span class="figure">{format.money(amount, currency)}</span>
    </div>
  );
}

/** Days are in UTC, as in the reports. */
function whenOf(day: string | undefined): string {
  const today = new Date(serverNow() * 1000).toISOString().slice(0, 10);
  return day === undefined || day === today ? "Today" : `On ${day}, the last day with work`;
}

function BudgetLine({ budget }: { budget: Schemas["Budget"] }) {
  const used = Number(budget.spent) / Number(budget.amount);
  return (
    <div class="stack tight">
      <div class="row wide">
        <span class="cut">{budget.name}</span>
        <span class="quiet">
          {format.money(budget.spent, budget.currency)} of{" "}
          {format.money(budget.amount, budget.currency)}
        </span>
      </div>
      <Meter share={used} label={`Used of the budget ${budget.name}`} />
    </div>
  );
}
