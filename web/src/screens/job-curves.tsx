// The curves of a job, those of other runs over them, and what its machine measured.

import { useEffect, useMemo, useState } from "preact/hooks";

import { get, type Schemas } from "../api/client";
import { feed, type ServerEvent } from "../api/events";
import { Chart } from "../charts/chart";
import { curvesOf, type Series } from "../charts/series";
import * as format from "../format";
import { useResource } from "../state/resource";
import { setQuery, usePlace } from "../state/router";
import { Card, Empty, ErrorNote, Found } from "../ui/parts";
import { OpenBoard } from "./job-board";

type Job = Schemas["Job"];
const LOOK_AGAIN_S = 5;
const SMOOTHING = [0, 0.6, 0.9, 0.98];

export function CurvesTab({ job, isOver }: { job: Job; isOver: boolean }) {
  const isProgress = (event: ServerEvent) =>
    event.job_id === job.id && event.kind === "job.progress";
  const series = useResource<{ items: Series[] }>(
    `/api/v1/jobs/${job.id}/metrics`,
    { points: 1000 },
    // GPUs are measured without any word of the job.
    { when: isProgress, everyS: isOver ? 0 : LOOK_AGAIN_S },
  );
  const [isLogarithmic, setLogarithmic] = useState(false);
  const [smoothing, setSmoothing] = useState(0);
  const { query } = usePlace();
  const others = (query.get("with") ?? "").split(",").filter(Boolean);
  const beside = useSeriesOf(others);
  const groups = useMemo(
    () => groupsOf([...(series.value?.items ?? []), ...beside.items]),
    [series.value, beside.items],
  );
  if (series.value === null) return <Found of={series} />;
  const errors = beside.errors.map((error, at) => <ErrorNote key={at} error={error} />);
  if (groups.length === 0) {
    return (
      <div class="stack">
        <Overlay job={job} others={others} />
        {errors}
        <Empty>No curves yet. A job prints them, or logs them to TensorBoard, W&B or MLflow.</Empty>
      </div>
    );
  }
  return (
    <div class="stack">
      <div class="head">
        <label class="row quiet">
          <input
            type="checkbox"
            checked={isLogarithmic}
            onChange={(event) => setLogarithmic(event.currentTarget.checked)}
          />
          logarithmic
        </label>
        <label class="row quiet">
          smoothing
          <select
            value={String(smoothing)}
            onChange={(event) => setSmoothing(Number(event.currentTarget.value))}
          >
            {SMOOTHING.map((weight) => (
              <option key={weight} value={String(weight)}>
                {weight === 0 ? "none" : weight}
              </option>
            ))}
          </select>
        </label>
        <Overlay job={job} others={others} />
        <span class="quiet small">Drag to zoom; double-click to go back.</span>
        <span class="spring" />
        <OpenBoard job={job} />
      </div>
      {errors}
      <div class="columns">
        {groups.map(([name, members]) => (
          <Card key={name} title={name}>
            <Curves
              name={name}
              members={members}
              smoothing={smoothing}
              isLogarithmic={isLogarithmic && !isMeasured(members)}
            />
          </Card>
        ))}
      </div>
    </div>
  );
}

interface CurvesProps {
  name: string;
  members: Series[];
  smoothing: number;
  isLogarithmic: boolean;
}

/** One chart, which is drawn again only where something of it has changed. */
function Curves({ name, members, smoothing, isLogarithmic }: CurvesProps) {
  const { xs, curves, isTime } = useMemo(() => curvesOf(members, smoothing), [members, smoothing]);
  return (
    <Chart xs={xs} curves={curves} label={name} isTime={isTime} isLogarithmic={isLogarithmic} />
  );
}

/** Whether a machine measured them: shares and sizes, which a logarithm would only hide. */
function isMeasured(members: readonly Series[]): boolean {
  return members[0]!.name.startsWith("system/");
}

/** Series that belong in one chart, by its title: the losses, each kind of reading of all
 * GPUs, and each of the others alone. */
function groupsOf(series: readonly Series[]): [string, Series[]][] {
  const groups = new Map<string, Series[]>();
  for (const one of series) {
    const title = titleOf(one.name);
    groups.set(title, [...(groups.get(title) ?? []), one]);
  }
  return [...groups].sort(
    ([title, members], [other, others]) =>
      rankOf(title, members) - rankOf(other, others) || title.localeCompare(other),
  );
}

/** The losses come first, then what else a program says, then what was measured. */
function rankOf(title: string, members: readonly Series[]): number {
  if (title === "loss") return 0;
  if (!isMeasured(members)) return 1;
  const at = Object.values(READINGS).indexOf(title);
  return at < 0 ? LAST : 2 + at;
}

const LAST = 100;

/** In the order in which they are shown. */
const READINGS: Record<string, string> = {
  "system/gpu_utilization": "GPU in use, of 1",
  "system/gpu_memory_mb": "GPU memory, MB",
  "system/cpu_cores": "CPU, cores",
  "system/memory_mb": "Memory, MB",
  "system/disk_mb": "Disk, MB",
};

function titleOf(name: string): string {
  if (/(^|[/_])loss$/.test(name)) return "loss";
  const reading = name.replace(/^system\/gpu\d+_/, "system/gpu_");
  return READINGS[reading] ?? reading;
}

// --- other runs ---

const MOST_RUNS = 50;
// However much a run says, it is asked no more often.
const PAUSE_S = 1;

/** Chooses other jobs of this name, whose curves are drawn over its own. They stand in the
 * address. */
function Overlay({ job, others }: { job: Job; others: readonly string[] }) {
  const asked = { name: job.name || undefined, limit: MOST_RUNS };
  const found = useResource<{ items: Job[] }>(job.name ? "/api/v1/jobs" : null, asked);
  const runs = (found.value?.items ?? []).filter(({ id }) => id !== job.id);
  const show = (ids: readonly string[]) => setQuery({ with: ids.join(",") });
  if (runs.length === 0 && others.length === 0) return null;
  return (
    <span class="row wrap">
      <select
        aria-label="Lay another run over it"
        value=""
        onChange={(event) => show([...others, event.currentTarget.value])}
      >
        <option value="">another run over it</option>
        {runs
          .filter(({ id }) => !others.includes(id))
          .map((run) => (
            <option key={run.id} value={run.id}>
              {format.shortId(run.id)}, {format.time(run.created_at)}
            </option>
          ))}
      </select>
      {others.map((id) => (
        <button
          key={id}
          type="button"
          class="button"
          aria-label={`Without ${format.shortId(id)}`}
          onClick={() => show(others.filter((one) => one !== id))}
        >
          {format.shortId(id)} ×
        </button>
      ))}
    </span>
  );
}

/** What one run has said of itself, and why no more is known. */
interface RunSeries {
  items: Series[];
  error: Error | null;
}

/** What these jobs have said of themselves, also while they go on, and why some could not be
 * read. What their machines measured is of other times. */
function useSeriesOf(ids: readonly string[]): { items: Series[]; errors: Error[] } {
  const [found, setFound] = useState<Record<string, RunSeries>>({});
  useEffect(() => {
    const asking = new AbortController();
    const waiting = new Map<string, ReturnType<typeof setTimeout>>();
    const note = (id: string, run: Partial<RunSeries>) => {
      if (asking.signal.aborted) return;
      setFound((old) => ({ ...old, [id]: { items: [], error: null, ...old[id], ...run } }));
    };
    const ask = (id: string) => {
      waiting.delete(id);
      seriesOf(id, asking.signal).then(
        (items) => note(id, { items, error: null }),
        (error: Error) => note(id, { error }),
      );
    };
    const end = feed.listen(({ job_id: id, kind }) => {
      if (kind !== "job.progress" || !id || !ids.includes(id) || waiting.has(id)) return;
      waiting.set(
        id,
        setTimeout(() => ask(id), PAUSE_S * 1000),
      );
    });
    ids.forEach(ask);
    return () => {
      end();
      asking.abort();
      waiting.forEach((timer) => clearTimeout(timer));
    };
  }, [ids.join(",")]);
  return useMemo(() => {
    const runs = ids.flatMap((id) => found[id] ?? []);
    return {
      items: runs.flatMap(({ items }) => items),
      errors: runs.flatMap(({ error }) => error ?? []),
    };
  }, [found, ids.join(",")]);
}

async function seriesOf(id: string, signal: AbortSignal): Promise<Series[]> {
  const path = `/api/v1/jobs/${encodeURIComponent(id)}/metrics`;
  const { items } = await get<{ items: Series[] }>(path, { points: 1000 }, signal);
  const own = items.filter(({ name }) => !name.startsWith("system/"));
  return own.map((series) => ({ ...series, run: format.shortId(id) }));
}
