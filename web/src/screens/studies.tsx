// Studies of distributed inference: what became of each strategy, and what it took.

import type { Schemas } from "../api/client";
import * as format from "../format";
import { countsOf, grouped, type Job, labelOf, ranS, SELDOM, wordsOf } from "../groups/jobs";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { Card, Empty, ErrorNote, Link, Meter, StateBadge } from "../ui/parts";
import { StudyResultCard } from "./studies-result";

const NEWEST = 1000;

export default function StudiesScreen() {
  const jobs = useResource<{ items: Job[] }>(
    "/api/v1/jobs",
    { label: "study-part=strategy", limit: NEWEST },
    SELDOM,
  );
  const results = useResource<Schemas["StudyPage"]>("/api/v1/studies", {}, { everyS: 30 });
  const found = results.value?.items ?? [];
  const runs = grouped(jobs.value?.items ?? [], (job) => labelOf(job, "study"));
  return (
    <>
      <div class="head">
        <h1>Studies</h1>
      </div>
      <ErrorNote error={jobs.error ?? results.error} />
      {jobs.value && results.value && runs.size === 0 && found.length === 0 && (
        <Empty>
          No study has run yet. One compares how to split a large model:{" "}
          <code>gpuyard study init</code>
        </Empty>
      )}
      {found.map((result) => (
        <StudyResultCard key={result.run} result={result} />
      ))}
      {[...runs].map(([run, own]) => (
        <StudyRun key={run} run={run} jobs={[...own].reverse()} />
      ))}
    </>
  );
}

function StudyRun({ run, jobs }: { run: string; jobs: Job[] }) {
  const now = useNow();
  const longest = Math.max(...jobs.map((job) => ranS(job, now) ?? 0), 1e-9);
  return (
    <Card
      title={run}
      action={<span class="quiet">{wordsOf(countsOf(jobs.map((job) => job.state)))}</span>}
    >
      <div class="scrolls" role="region" aria-label={run} tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th>Strategy</th>
              <th>State</th>
              <th class="bar">Time</th>
              <th class="number">Ran</th>
              <th class="number">Cost</th>
              <th>Why it ended</th>
              <th class="number">Begun</th>
            </tr>
          </thead>
          <tbody>
            {jobs.map((job) => (
              <tr key={job.id}>
                <td>
                  <Link to={`/jobs/${job.id}`}>{job.name}</Link>
                </td>
                <td>
                  <StateBadge state={job.state} />
                </td>
                <td class="bar">
                  <Meter share={(ranS(job, now) ?? 0) / longest} label="Share of the longest" />
                </td>
                <td class="number">{format.duration(ranS(job, now))}</td>
                <td class="number">{format.cents(job.cost?.amount, job.cost?.currency)}</td>
                <td class="quiet">{job.reason?.replaceAll("_", " ") ?? "–"}</td>
                <td class="number quiet">{format.ago(job.created_at, now)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="quiet small">
        Of a run that has ended, the results stand above. Every answer stands in the study's report:{" "}
        <code>gpuyard study report</code>
      </p>
    </Card>
  );
}
