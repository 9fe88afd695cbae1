// One flow: its steps, what each needs, and what became of it.

import { useRef } from "preact/hooks";

import { flowsOf, type Step } from "../groups/flows";
import { isOf, isOver, type Job, ranS, wordsOf } from "../groups/jobs";
import { Graph } from "../charts/graph";
import * as format from "../format";
import { useNow } from "../state/clock";
import { usePlace } from "../state/router";
import { useTitle } from "../state/title";
import { useWhole } from "../state/whole";
import { Card, Empty, ErrorNote, Found, Link, StateBadge } from "../ui/parts";
import { flowState } from "./sweeps";
import "../ui/panels.css";

export default function FlowScreen() {
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const label = [`flow=${name}`, `flow-place=${query.get("place") ?? ""}`];
  const known = useRef<ReadonlySet<string>>(new Set());
  const jobs = useWhole<Job>("/api/v1/jobs", { label }, isOf(known));
  known.current = new Set(jobs.items.map((job) => job.id));
  const flow = flowsOf(jobs.items)[0];
  useTitle(flow?.name);
  const now = useNow();
  if (!flow) {
    return jobs.hasMore ? (
      <Found of={{ value: null, error: jobs.error }} />
    ) : (
      <Empty>No job of such a flow is kept.</Empty>
    );
  }
  return (
    <>
      <div class="head">
        <h1 class="cut">{flow.name}</h1>
        <StateBadge state={flowState(flow)} />
        <span class="quiet">
          {wordsOf(flow.counts)}; last begun {format.ago(flow.createdAt, now)}
        </span>
      </div>
      <ErrorNote error={jobs.error} />
      <Card title="What needs what">
        <Graph nodes={flow.steps} label={`Steps of ${flow.name}`} draw={drawStep} />
      </Card>
      <StepTable steps={flow.steps} now={now} />
    </>
  );
}

function drawStep(step: Step) {
  return (
    <>
      <Link to={`/jobs/${step.job.id}`} class="cut">
        {step.name}
      </Link>
      <span class="row wide">
        <StateBadge state={step.job.state} />
        <span class="quiet small">
          {isOver(step.job) ? format.duration(ranS(step.job, 0)) : ""}
        </span>
      </span>
      {step.needs.length > 0 && <span class="hidden-text">It needs {step.needs.join(", ")}.</span>}
    </>
  );
}

function StepTable({ steps, now }: { steps: readonly Step[]; now: number }) {
  return (
    <Card title="Steps">
      <div class="scrolls" role="region" aria-label="Steps" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th>Step</th>
              <th>State</th>
              <th>Needs</th>
              <th class="number">Jobs so far</th>
              <th class="number">Ran</th>
              <th class="number">Cost</th>
              <th class="number">Begun</th>
            </tr>
          </thead>
          <tbody>
            {steps.map(({ name, job, needs, runs }) => (
              <tr key={name}>
                <td>
                  <Link to={`/jobs/${job.id}`}>{name}</Link>
                </td>
                <td>
                  <StateBadge state={job.state} />
                </td>
                <td>{needs.join(", ") || "–"}</td>
                <td class="number">{format.count(runs)}</td>
                <td class="number">{format.duration(ranS(job, now))}</td>
                <td class="number">{format.cents(job.cost?.amount, job.cost?.currency)}</td>
                <td class="number quiet">{format.ago(job.created_at, now)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
