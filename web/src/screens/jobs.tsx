// All jobs, newest first. The filters are in the address, so that it can be sent.

import { useMemo, useState } from "preact/hooks";

import { type Query, type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { serverNow, useNow } from "../state/clock";
import { useListing } from "../state/pages";
import { mayChange, maySubmit } from "../state/rights";
import { setQuery, usePlace } from "../state/router";
import { useFirstAndSettled } from "../state/settled";
import { ActionButton, Empty, ErrorNote, Link, Loading, Meter, StateBadge } from "../ui/parts";
import { Windowed } from "../ui/window";
import { ArrayHead } from "./array";

type Job = Schemas["Job"];
const LINE_HEIGHT = 40;
const STATES = [
  "queued",
  "assigned",
  "running",
  "completed",
  "failed",
  "cancelled",
  "timed_out",
  "unknown",
];
const OVER = new Set(["completed", "failed", "cancelled", "timed_out"]);
const FILTERS = ["name", "project", "user", "label"] as const;
const HINTS = { name: "Name", project: "Project", user: "User", label: "Label, NAME=VALUE" };
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
/** How long ago a job was submitted at most, as the address has it. */
const SINCE: Record<string, readonly [seconds: number, words: string]> = {
  "1h": [HOUR_S, "in the last hour"],
  "1d": [DAY_S, "in the last day"],
  "7d": [7 * DAY_S, "in the last 7 days"],
  "30d": [30 * DAY_S, "in the last 30 days"],
};
const isAboutJobs = (event: ServerEvent) => event.kind.startsWith("job.");

export function JobsScreen() {
  const { query } = usePlace();
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) || undefined]));
  const age = query.get("since") ?? "";
  // A moment, so that the question stays the same while the list is open.
  const since = useMemo(
    () => (Object.hasOwn(SINCE, age) ? Math.floor(serverNow() - SINCE[age]![0]) : undefined),
    [age],
  );
  const typed = JSON.stringify({
    ...filters,
    name: asPattern(filters["name"]),
    state: query.get("state") || undefined,
    array: query.get("array") || undefined,
    since,
  });
  const wanted = JSON.parse(useFirstAndSettled(typed)) as Query;
  const jobs = useListing<Job>("/api/v1/jobs", wanted, isAboutJobs);
  const [chosen, setChosen] = useState<ReadonlyMap<string, Job>>(new Map());
  const now = useNow();

  function choose(job: Job, isChosen: boolean): void {
    const next = new Map(chosen);
    if (isChosen) next.set(job.id, job);
    else next.delete(job.id);
    setChosen(next);
  }

  return (
    <>
      <div class="head">
        <h1>Jobs</h1>
        {query.get("array") && <ArrayHead key={query.get("array")} id={query.get("array")!} />}
        <span class="spring" />
        {chosen.size > 0 && (
          <BulkActions
            chosen={present(chosen, jobs.items)}
            onDone={(left) => (setChosen(left), jobs.reload())}
          />
        )}
      </div>
      <Filters query={query} />
      <ErrorNote error={jobs.error} />
      <div class="list">
        <div class="line titles" aria-hidden="true">
          <span />
          <span>Job</span>
          <span>State</span>
          <span class="less">Progress</span>
          <span class="less number">Ran</span>
          <span class="less number">Cost</span>
          <span class="less number">Submitted</span>
        </div>
        {jobs.items.length === 0 && jobs.hasMore && !jobs.error && <Loading />}
        {jobs.items.length === 0 && !jobs.hasMore && (
          <Empty>
            {Object.keys(wanted).length === 0
              ? "Nothing was submitted yet."
              : "No job is like that."}
          </Empty>
        )}
        <Windowed
          items={jobs.items}
          lineHeight={LINE_HEIGHT}
          class="body"
          label="Jobs"
          onEnd={jobs.more}
          onSight={jobs.see}
          draw={(job) => (
            <JobLine
              key={job.id}
              job={job}
              now={now}
              isChosen={chosen.has(job.id)}
              onChoose={(isChosen) => choose(job, isChosen)}
            />
          )}
        />
      </div>
    </>
  );
}

/** What has been chosen, as far as it is known now. */
function present(chosen: ReadonlyMap<string, Job>, jobs: readonly Job[]): ReadonlyMap<string, Job> {
  const now = new Map(jobs.map((job) => [job.id, job]));
  return new Map([...chosen].map(([id, job]) => [id, now.get(id) ?? job]));
}

/** What somebody types is found anywhere in the name. */
function asPattern(name: string | undefined): string | undefined {
  return name && !/[*?]/.test(name) ? `*${name}*` : name;
}

function Filters({ query }: { query: URLSearchParams }) {
  return (
    <form class="head" role="search" onSubmit={(event) => event.preventDefault()}>
      <select
        aria-label="State"
        value={query.get("state") ?? ""}
        onChange={(event) => setQuery({ state: event.currentTarget.value })}
      >
        <option value="">Every state</option>
        {STATES.map((state) => (
          <option key={state} value={state}>
            {state.replaceAll("_", " ")}
          </option>
        ))}
      </select>
      <select
        aria-label="Submitted"
        value={query.get("since") ?? ""}
        onChange={(event) => setQuery({ since: event.currentTarget.value })}
      >
        <option value="">Whenever submitted</option>
        {Object.entries(SINCE).map(([age, [, words]]) => (
          <option key={age} value={age}>
            {words}
          </option>
        ))}
      </select>
      {FILTERS.map((name) => (
        <input
          key={name}
          type="search"
          aria-label={name}
          placeholder={HINTS[name]}
          value={query.get(name) ?? ""}
          onChange={(event) => setQuery({ [name]: event.currentTarget.value.trim() })}
        />
      ))}
    </form>
  );
}

interface LineProps {
  job: Job;
  now: number;
  isChosen: boolean;
  onChoose: (isChosen: boolean) => void;
}

function JobLine({ job, now, isChosen, onChoose }: LineProps) {
  const name = job.name || format.shortId(job.id);
  return (
    <div class="line" role="listitem">
      {mayChange(job) ? (
        <input
          type="checkbox"
          aria-label={`Choose ${name}${job.array_id ? ` ${shortNameOf(job)}` : ""}`}
          checked={isChosen}
          onChange={(event) => onChoose(event.currentTarget.checked)}
        />
      ) : (
        <span />
      )}
      <span class="row">
        <Link to={`/jobs/${job.id}`} class="cut">
          {name}
        </Link>
        <span class={`quiet small mono ${job.array_id ? "" : "less"}`}>
          {job.name ? shortNameOf(job) : ""}
        </span>
      </span>
      <StateBadge state={job.state} isHeld={job.held} />
      <span class="less">
        <ProgressOf job={job} />
      </span>
      <span class="less number quiet">{format.duration(ranS(job, now))}</span>
      <span class="less number">{format.cents(job.cost?.amount, job.cost?.currency)}</span>
      <span class="less number quiet">{format.ago(job.created_at, now)}</span>
    </div>
  );
}

/** The end of its id; of a task, that of its array with the index, as the command calls it. */
function shortNameOf({ id, array_id: array, array_index: index }: Job): string {
  return array ? `${format.shortId(array)}_${index}` : format.shortId(id);
}

function ranS(job: Job, now: number): number | null {
  return job.started_at ? (job.ended_at ?? now) - job.started_at : null;
}

function ProgressOf({ job }: { job: Job }) {
  const { step, total, eta_s: etaS } = job.progress;
  if (job.state !== "running") {
    return <span class="quiet cut">{job.reason?.replaceAll("_", " ")}</span>;
  }
  if (!step || !total) return <span class="quiet">–</span>;
  return (
    <span class="stack tight">
      <Meter share={step / total} label="Progress" />
      <span class="quiet small">{etaS ? `${format.duration(etaS)} left` : ""}</span>
    </span>
  );
}

interface BulkProps {
  chosen: ReadonlyMap<string, Job>;
  /** `left`: those that it could not be done with. */
  onDone: (left: ReadonlyMap<string, Job>) => void;
}

function BulkActions({ chosen, onDone }: BulkProps) {
  const [error, setError] = useState<Error | null>(null);
  const jobs = [...chosen.keys()];
  const all = [...chosen.values()];
  const mayResume = all.every((job) => OVER.has(job.state) && maySubmit(job.project));
  const mayCancel = all.some((job) => !OVER.has(job.state));

  async function cancel(): Promise<void> {
    await send("POST", "/api/v1/jobs:cancel", { jobs });
    onDone(new Map());
  }

  /** One that cannot be started again keeps no other from it. */
  async function resume(): Promise<void> {
    const left = new Map<string, Job>();
    const refusals: string[] = [];
    for (const [id, job] of chosen) {
      try {
        await send("POST", `/api/v1/jobs/${id}/resume`);
      } catch (fault) {
        left.set(id, job);
        refusals.push(`${job.name || format.shortId(id)}: ${(fault as Error).message}`);
      }
    }
    onDone(left);
    if (refusals.length > 0) throw new Error(refusals.join(" "));
  }

  return (
    <div class="row" role="group" aria-label="With the chosen jobs">
      <ErrorNote error={error} />
      <span class="quiet">{chosen.size} chosen</span>
      {mayResume && (
        <ActionButton act={resume} onError={setError}>
          Start again
        </ActionButton>
      )}
      {mayCancel && (
        <ActionButton act={cancel} kind="danger" onError={setError}>
          Cancel
        </ActionButton>
      )}
    </div>
  );
}
