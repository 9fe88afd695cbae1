// One job: its state and what can be done about it, curves, output, and what it left.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { Problem, type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { isArray, screenOf } from "../groups/jobs";
import { useNow } from "../state/clock";
import { type Resource, useResource } from "../state/resource";
import { go, setQuery, usePlace } from "../state/router";
import { mayChange, maySubmit, opensStreams } from "../state/rights";
import { session } from "../state/session";
import { useTitle } from "../state/title";
import {
  ActionButton,
  Card,
  Empty,
  ErrorNote,
  Found,
  Link,
  Loading,
  Meter,
  StateBadge,
  Tabs,
} from "../ui/parts";
import { ArtifactsTab } from "./job-artifacts";
import { JobChanges } from "./job-changes";
import { CurvesTab } from "./job-curves";
import { JobGpus } from "./job-gpus";
import { JobInput } from "./job-input";
import { OpenPort } from "./job-port";
import { Shell } from "./job-shell";
import { Log } from "./log";

type Job = Schemas["Job"];
const TABS = [
  "curves",
  "log",
  "checkpoints",
  "artifacts",
  "timeline",
  "specification",
  "shell",
] as const;
type Tab = (typeof TABS)[number];
const OVER = new Set(["completed", "failed", "cancelled", "timed_out"]);

interface Items<T> {
  items: T[];
}

export default function JobScreen({ words: [reference] }: { words: string[] }) {
  return isArray(reference!) ? <ToTasks array={reference!} /> : <OneJob reference={reference!} />;
}

/** An array has no page of its own: the list has its tasks. */
function ToTasks({ array }: { array: string }) {
  useEffect(() => go(screenOf({ id: array }), { replace: true }), [array]);
  return <Loading />;
}

function OneJob({ reference }: { reference: string }) {
  // It may be given by its name, and until it is known, any event may be about it: one that
  // comes while the answer is on its way is in no answer.
  const isOfJob = ({ job_id: id }: ServerEvent) =>
    id !== null && (job.value === null ? job.error === null : id === job.value.id);
  const path = `/api/v1/jobs/${reference}`;
  const job: Resource<Job> = useResource<Job>(path, {}, { when: isOfJob });
  useTitle(job.value && (job.value.name || format.shortId(job.value.id)));
  const { query } = usePlace();
  const asked = query.get("show");
  const isGone = job.error instanceof Problem && job.error.status === 404;
  if (job.value === null || isGone) return <Missing error={job.error} />;
  const one = job.value;
  // What a shell has shown stays when the job has ended.
  const hasShell = opensStreams(one) && (one.state === "running" || asked === "shell");
  const tabs = TABS.filter((name) => name !== "shell" || hasShell);
  const tab = tabs.find((name) => name === asked) ?? "curves";
  return (
    <>
      <Head job={one} onChange={job.reload} />
      <Found of={job} />
      <Facts job={one} />
      {!OVER.has(one.state) && one.state !== "running" && <Why job={one} />}
      <div class="stack">
        <Tabs
          label="What to show"
          names={tabs}
          chosen={tab}
          onChoose={(name) => setQuery({ show: name })}
        />
        <Shown tab={tab} job={one} />
      </div>
    </>
  );
}

/** No such job: there never was one, or it was removed while this was open. */
function Missing({ error }: { error: Error | null }) {
  if (error === null) return <Loading />;
  return (
    <>
      <h1>No job</h1>
      <ErrorNote error={error} />
      <p>
        <Link to="/jobs">All jobs</Link>
      </p>
    </>
  );
}

function Shown({ tab, job }: { tab: Tab; job: Job }) {
  switch (tab) {
    case "curves":
      return <CurvesTab job={job} isOver={OVER.has(job.state)} />;
    case "log":
      return <LogTab job={job} />;
    case "checkpoints":
      return <CheckpointsTab job={job} />;
    case "artifacts":
      return <ArtifactsTab job={job} />;
    case "timeline":
      return <TimelineTab job={job} />;
    case "specification":
      return <SpecificationTab job={job} />;
    case "shell":
      return <Shell job={job} />;
  }
}

function LogTab({ job }: { job: Job }) {
  const takesInput = job.state === "running" && job.spec?.["interactive"] === true;
  return (
    <div class="stack">
      <Log job={job.id} isOver={OVER.has(job.state)} />
      {takesInput && opensStreams(job) && <JobInput job={job.id} />}
    </div>
  );
}

// --- the head ---

function Head({ job, onChange }: { job: Job; onChange: () => void }) {
  const [error, setFault] = useState<Error | null>(null);
  const isMine = mayChange(job);
  function setError(fault: Error | null): void {
    setFault(fault);
    // What cannot be done may be because the job is not what it was, or is gone.
    if (fault) onChange();
  }
  async function post(action: string): Promise<void> {
    await send("POST", `/api/v1/jobs/${job.id}/${action}`);
    onChange();
  }
  async function rerun(): Promise<void> {
    const made = await send<{ job: { id: string } }>("POST", `/api/v1/jobs/${job.id}/rerun`);
    go(`/jobs/${made.job.id}`);
  }
  return (
    <>
      <div class="head">
        <h1 class="cut">{job.name || format.shortId(job.id)}</h1>
        <StateBadge state={job.state} isHeld={job.held} />
        <span class="quiet mono small">{job.id}</span>
        {job.array_id && (
          <Link to={`/jobs?array=${job.array_id}`} class="small">
            Task {job.array_index} of {format.shortId(job.array_id)}
          </Link>
        )}
        <span class="spring" />
        {session.may("member") && (
          <div class="row wrap">
            {OVER.has(job.state) && isMine && maySubmit(job.project) && (
              <ActionButton act={() => post("resume")} onError={setError}>
                Resume
              </ActionButton>
            )}
            {maySubmit(job.project) && (
              <ActionButton act={rerun} onError={setError}>
                Run again
              </ActionButton>
            )}
            <Link to={`/submit?from=${job.id}`} class="button">
              Clone and edit
            </Link>
            {job.state === "running" && opensStreams(job) && <OpenPort job={job.id} />}
            <JobChanges
              job={job}
              isOver={OVER.has(job.state)}
              onChange={onChange}
              onError={setError}
            />
            {!OVER.has(job.state) && isMine && (
              <ActionButton act={() => post("cancel")} kind="danger" onError={setError}>
                Cancel
              </ActionButton>
            )}
          </div>
        )}
      </div>
      <ErrorNote error={error} />
    </>
  );
}

function Facts({ job }: { job: Job }) {
  const now = useNow();
  const { step, total, eta_s: etaS } = job.progress;
  const ranS = job.started_at ? (job.ended_at ?? now) - job.started_at : null;
  const last = job.attempts?.at(-1);
  const said = last?.message ?? job.reason?.replaceAll("_", " ");
  return (
    <>
      <div class="tiles counts">
        <Fact
          name="Progress"
          value={step && total ? `${format.count(step)} of ${format.count(total)}` : "–"}
        >
          {step && total ? <Meter share={step / total} label="Progress" /> : null}
        </Fact>
        <Fact name={OVER.has(job.state) ? "Ran" : "Running"} value={format.duration(ranS)}>
          <span class="quiet small">
            {etaS && job.state === "running"
              ? `${format.duration(etaS)} left`
              : format.time(job.created_at)}
          </span>
        </Fact>
        <Fact name="Cost" value={format.money(job.cost?.amount, job.cost?.currency)}>
          <span class="quiet small">{job.cost?.tier ?? ""}</span>
        </Fact>
        <Fact name="Place" value={job.provider ?? "–"}>
          <JobGpus uuids={job.gpus ?? []} />
        </Fact>
      </div>
      {OVER.has(job.state) && job.state !== "completed" && said && (
        <div class="error">
          {(said !== "exit code" || !job.exit_code) && <p>{said}</p>}
          {job.exit_code !== null && job.exit_code !== undefined && (
            <p>Exit code {job.exit_code}.</p>
          )}
        </div>
      )}
    </>
  );
}

function Fact({
  name,
  value,
  children,
}: {
  name: string;
  value: string;
  children: ComponentChildren;
}) {
  return (
    <div class="card">
      <span class="quiet">{name}</span>
      <span class="figure cut">{value}</span>
      {children}
    </div>
  );
}

function Why({ job }: { job: Job }) {
  const why = useResource<{ summary: string; would_help?: string[] }>(
    `/api/v1/jobs/${job.id}/why`,
    {},
    { everyS: 5 },
  );
  return (
    <Card title="Why does it wait?">
      <Found of={why} />
      <p>{why.value?.summary}</p>
      {why.value?.would_help?.map((help) => (
        <p key={help} class="quiet">
          {help}
        </p>
      ))}
    </Card>
  );
}

// --- what it left ---

function CheckpointsTab({ job }: { job: Job }) {
  const isNew = (event: ServerEvent) =>
    event.job_id === job.id && event.kind.startsWith("checkpoint.");
  const path = `/api/v1/jobs/${job.id}/checkpoints`;
  const found = useResource<Items<Schemas["Checkpoint"]>>(path, {}, { when: isNew });
  const [error, setError] = useState<Error | null>(null);
  const canResume = OVER.has(job.state) && mayChange(job) && maySubmit(job.project);
  async function resume(checkpoint: string): Promise<void> {
    await send("POST", `/api/v1/jobs/${job.id}/resume`, { checkpoint });
    // What comes of it is seen there.
    setQuery({ show: "" });
  }
  if (found.value?.items.length === 0) return <Empty>It has saved no checkpoint.</Empty>;
  return (
    <div class="card scrolls">
      <ErrorNote error={found.error ?? error} />
      <table>
        <thead>
          <tr>
            <th>Checkpoint</th>
            <th class="number">Step</th>
            <th class="number">Size</th>
            <th>Saved</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {found.value?.items.map((one) => (
            <tr key={one.id}>
              <td class="mono">{one.path}</td>
              <td class="number">{one.step ?? "–"}</td>
              <td class="number">{format.bytes(one.size)}</td>
              <td>{format.time(one.created_at)}</td>
              <td>
                <div class="row">
                  {one.kept && (
                    <a class="button" href={`/api/v1/checkpoints/${one.id}/content`} download>
                      Download
                    </a>
                  )}
                  {canResume && one.kept && (
                    <ActionButton act={() => resume(one.id)} onError={setError}>
                      Resume from here
                    </ActionButton>
                  )}
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What it was asked to do, and, to be kept, what it really ran. */
function SpecificationTab({ job }: { job: Job }) {
  return (
    <div class="stack">
      <div>
        <a class="button" href={`/api/v1/jobs/${job.id}/record`} download={`${job.id}.json`}>
          Download the record of the run
        </a>
      </div>
      <pre class="card scrolls" tabIndex={0}>
        {JSON.stringify(job.spec, null, 2)}
      </pre>
    </div>
  );
}

// --- what happened ---

const MOST_EVENTS = 1000;

function TimelineTab({ job }: { job: Job }) {
  const isNew = (event: ServerEvent) => event.job_id === job.id && event.seq !== null;
  const events = useResource<Items<ServerEvent>>(
    "/api/v1/events",
    { job: job.id, newest: true, limit: MOST_EVENTS },
    { when: isNew },
  );
  return (
    <div class="card scrolls">
      <Found of={events} />
      {events.value?.items.length === MOST_EVENTS && (
        <p class="quiet">
          These are its newest {format.count(MOST_EVENTS)} events. The{" "}
          <Link to={`/audit?job=${job.id}`}>audit</Link> looks further back.
        </p>
      )}
      <table>
        <tbody>
          {events.value?.items.map((event) => (
            <tr key={event.seq}>
              <td class="quiet">{format.time(event.at)}</td>
              <td>{event.kind.replace(".", " ").replaceAll("_", " ")}</td>
              <td class="quiet">{detailsOf(event)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet">
        <Link to={`/jobs?name=${encodeURIComponent(job.name || "")}`}>Other runs of this name</Link>
      </p>
    </div>
  );
}

/** Without ids of what nobody calls by them: attempts have numbers, and the place is above. */
const NO_NAME = /^(attempt|node)_[0-9a-f]{32}$/;

function detailsOf({ data }: ServerEvent): string {
  const shown = Object.entries(data).filter(
    ([, value]) => value !== null && typeof value !== "object" && !NO_NAME.test(String(value)),
  );
  return shown.map(([name, value]) => `${name.replaceAll("_", " ")} ${String(value)}`).join(" · ");
}
