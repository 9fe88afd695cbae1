// One sweep: which settings its runs had, and which did best.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { AGAIN_MS, get, send } from "../api/client";
import { axisOf, isWithin, type Ranges } from "../charts/axes";
import { type Line, Parallel } from "../charts/parallel";
import * as format from "../format";
import { countsOf, isOf, SELDOM, isOver, type Job, labelOf, ranS, wordsOf } from "../groups/jobs";
import {
  type BestValues,
  ranked,
  type Run,
  runsOf,
  stateOf,
  type SweepSpec,
} from "../groups/sweeps";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { mayChange } from "../state/rights";
import { useTitle } from "../state/title";
import { useWhole } from "../state/whole";
import { ActionButton, Badge, Card, Empty, ErrorNote, Found, Link, StateBadge } from "../ui/parts";
import { SweepBadge } from "./sweeps";
import "../ui/panels.css";

const SHOWN = 200;

export default function SweepScreen({ words: [id] }: { words: string[] }) {
  const gates = useResource<{ items: Job[] }>(
    "/api/v1/jobs",
    { label: [`sweep-id=${id}`, "sweep-part=gate"], limit: 1 },
    SELDOM,
  );
  const gate = gates.value?.items[0];
  const full = useResource<Job>(gate ? `/api/v1/jobs/${gate.id}` : null);
  const label = [`sweep-id=${id}`, "sweep-part=run"];
  const known = useRef<ReadonlySet<string>>(new Set());
  const runs = useWhole<Job>("/api/v1/jobs", { label }, isOf(known));
  known.current = new Set(runs.items.map((job) => job.id));
  const error = gates.error ?? full.error ?? runs.error;
  const spec = useMemo(() => specOf(full.value), [full.value]);
  if (gates.value && !gate) return <Empty>There is no such sweep.</Empty>;
  if (full.value && !spec) return <Empty>What this sweep was asked to do is not known.</Empty>;
  if (!gate || !spec) return <Found of={{ value: null, error }} />;
  return (
    <>
      <ErrorNote error={error} />
      <SweepOf gate={gate} spec={spec} jobs={runs.items} onChange={gates.reload} />
    </>
  );
}

/** The gate's input is what the sweep was asked to do. */
function specOf(gate: Job | null): SweepSpec | null {
  const text = gate?.spec?.["stdin"];
  return typeof text === "string" ? (JSON.parse(text) as SweepSpec) : null;
}

interface SweepProps {
  gate: Job;
  spec: SweepSpec;
  jobs: Job[];
  onChange: () => void;
}

function SweepOf({ gate, spec, jobs, onChange }: SweepProps) {
  useTitle(labelOf(gate, "sweep"));
  const [shown, setShown] = useState<string | null>(null);
  const [ranges, setRanges] = useState<Ranges>({});
  const best = useBestValues(jobs, spec);
  const runs = useMemo(() => runsOf(jobs, spec, best), [jobs, spec, best]);
  const order = ranked(runs, spec.goal);
  const counts = countsOf(runs.map((run) => run.outcome));
  const { axes, lines } = useMemo(() => drawingOf(runs, order, spec), [runs]);
  const within = lines.filter((line) => isWithin(line.values, axes, ranges));
  const chosen = new Set(within.map((line) => line.id));
  const listed = [...new Set([...order, ...runs])].filter((run) => chosen.has(run.job.id));
  return (
    <>
      <div class="head">
        <h1 class="cut">{labelOf(gate, "sweep")}</h1>
        <SweepBadge state={stateOf(gate, counts)} />
        <span class="spring" />
        <Stop gate={gate} runs={runs} onDone={onChange} />
      </div>
      <div class="tiles counts">
        <Fact name="Runs" value={format.count(runs.length)} more={wordsOf(counts)} />
        <Fact
          name={`Best ${spec.metric}`}
          value={format.figure(order[0]?.value)}
          more={order[0] ? settingsOf(order[0]) : `to ${spec.goal}`}
        />
        <Fact name="Method" value={spec.method} more={`${spec.goal} ${spec.metric}`} />
        <Fact name="Cost" value={costOf(jobs)} more="of all its runs" />
      </div>
      {runs.length === 0 ? (
        <Empty>No run yet.</Empty>
      ) : (
        <>
          <Card
            title="Settings and results"
            action={
              Object.keys(ranges).length > 0 && (
                <button type="button" class="button" onClick={() => setRanges({})}>
                  Show all runs
                </button>
              )
            }
          >
            <p class="quiet small">
              A line is a run; the best are green. Drag along an axis to choose a part of it.
            </p>
            <Parallel
              axes={axes}
              lines={lines}
              label={describe(runs, order, spec)}
              shown={shown}
              onShow={setShown}
              ranges={ranges}
              onRanges={setRanges}
            />
          </Card>
          <RunTable runs={listed} spec={spec} shown={shown} onShow={setShown} />
        </>
      )}
    </>
  );
}

function Fact({ name, value, more }: { name: string; value: string; more: string }) {
  return (
    <div class="card">
      <span class="quiet">{name}</span>
      <span class="figure cut">{value}</span>
      <span class="quiet small cut" title={more}>
        {more}
      </span>
    </div>
  );
}

function settingsOf(run: Run): string {
  return Object.entries(run.parameters)
    .map(([name, value]) => `${name} ${setting(value)}`)
    .join(", ");
}

/** A number in few digits; a word as it is. */
function setting(value: string | undefined): string {
  if (value === undefined) return "–";
  const number = Number(value);
  return value.length > 6 && Number.isFinite(number) ? format.figure(number) : value;
}

function costOf(jobs: readonly Job[]): string {
  const sum = jobs.reduce((all, job) => all + Number(job.cost?.amount ?? 0), 0);
  return format.cents(String(sum), jobs[0]?.cost?.currency);
}

function describe(runs: readonly Run[], order: readonly Run[], spec: SweepSpec): string {
  const best = order[0];
  const end = best ? `; best is ${format.figure(best.value)} with ${settingsOf(best)}` : "";
  return `${runs.length} runs of a sweep, to ${spec.goal} ${spec.metric}${end}`;
}

function drawingOf(runs: readonly Run[], order: readonly Run[], spec: SweepSpec) {
  const names = Object.keys(spec.parameters);
  const known = (name: string) =>
    runs.map((run) => run.parameters[name]).filter((value) => value !== undefined);
  const results = runs.filter((run) => run.value !== null).map((run) => String(run.value));
  const axes = [...names.map((name) => axisOf(name, known(name))), axisOf(spec.metric, results)];
  const ranks = new Map(
    order.map((run, at) => [run.job.id, 1 - at / Math.max(order.length - 1, 1)]),
  );
  const lines = runs.map((run): Line => ({
    id: run.job.id,
    name: `${run.job.name}: ${settingsOf(run)}, ${spec.metric} ${format.figure(run.value)}`,
    values: [
      ...names.map((name) => run.parameters[name] ?? null),
      run.value === null ? null : String(run.value),
    ],
    rank: ranks.get(run.job.id) ?? null,
  }));
  return { axes, lines };
}

function RunTable(props: {
  runs: Run[];
  spec: SweepSpec;
  shown: string | null;
  onShow: (id: string | null) => void;
}) {
  const { runs, spec } = props;
  const now = useNow();
  const [isWhole, setWhole] = useState(false);
  const names = Object.keys(spec.parameters);
  return (
    <Card title={`Runs, the best first: ${format.count(runs.length)}`}>
      <div class="scrolls" role="region" aria-label="Runs" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th>Run</th>
              <th>State</th>
              {names.map((name) => (
                <th key={name} class="number">
                  {name}
                </th>
              ))}
              <th class="number">{spec.metric}</th>
              <th class="number">Ran</th>
              <th class="number">Cost</th>
            </tr>
          </thead>
          <tbody>
            {runs.slice(0, isWhole ? undefined : SHOWN).map((run) => (
              <tr
                key={run.job.id}
                class={run.job.id === props.shown ? "shown" : ""}
                onPointerEnter={() => props.onShow(run.job.id)}
                onPointerLeave={() => props.onShow(null)}
                onFocusIn={() => props.onShow(run.job.id)}
                onFocusOut={() => props.onShow(null)}
              >
                <td class="whole">
                  <Link to={`/jobs/${run.job.id}`}>{run.job.name}</Link>
                </td>
                <td>
                  {run.outcome === "pruned" ? (
                    <Badge>pruned</Badge>
                  ) : (
                    <StateBadge state={run.outcome} />
                  )}
                </td>
                {names.map((name) => (
                  <td key={name} class="number" title={run.parameters[name]}>
                    {setting(run.parameters[name])}
                  </td>
                ))}
                <td class="number">{format.figure(run.value)}</td>
                <td class="number quiet">{format.duration(ranS(run.job, now))}</td>
                <td class="number">{format.cents(run.job.cost?.amount, run.job.cost?.currency)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {!isWhole && runs.length > SHOWN && (
        <div>
          <button type="button" class="button" onClick={() => setWhole(true)}>
            Show all {format.count(runs.length)}
          </button>
        </div>
      )}
    </Card>
  );
}

interface StopProps {
  gate: Job;
  runs: readonly Run[];
  onDone: () => void;
}

function Stop({ gate, runs, onDone }: StopProps) {
  const [error, setError] = useState<Error | null>(null);
  if (isOver(gate) || !mayChange(gate)) return null;
  async function stop(): Promise<void> {
    const live = runs.filter((run) => !isOver(run.job)).map((run) => run.job.id);
    // The gate first: without it, whoever drives the sweep begins no more.
    await send("POST", "/api/v1/jobs:cancel", { jobs: [gate.id, ...live] });
    onDone();
  }
  return (
    <>
      <ErrorNote error={error} />
      <ActionButton act={stop} kind="danger" onError={setError}>
        Stop
      </ActionButton>
    </>
  );
}

interface SeriesPage {
  items: { name: string; points: { value: number }[] }[];
}

/** By job, the best value of its curve; only for a sweep in which that counts. Runs that are
 * over are asked for once. */
function useBestValues(jobs: readonly Job[], spec: SweepSpec): BestValues {
  const [found, setFound] = useState<BestValues>(new Map());
  const wanted =
    spec.take === "best" ? jobs.filter((job) => isOver(job) && !found.has(job.id)) : [];
  const next = wanted[0]?.id;
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (next === undefined) return;
    const asked = new AbortController();
    let again: ReturnType<typeof setTimeout> | 0 = 0;
    const path = `/api/v1/jobs/${next}/metrics`;
    const pick = spec.goal === "minimize" ? Math.min : Math.max;
    get<SeriesPage>(path, { name: spec.metric, points: 100 }, asked.signal)
      .then(({ items }) => {
        const values = items.flatMap((series) => series.points.map((point) => point.value));
        setFound((old) => new Map(old).set(next, values.length ? pick(...values) : null));
      })
      .catch(() => {
        if (asked.signal.aborted) return;
        again = setTimeout(() => setTries(tries + 1), AGAIN_MS);
      });
    return () => {
      asked.abort();
      clearTimeout(again);
    };
  }, [next, tries]);
  return found;
}
