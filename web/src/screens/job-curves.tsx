// The curves of a job, those of other runs over them, and what its machine measured.

import { useEffect, useState } from "preact/hooks";

import { get, type Schemas } from "../api/client";
import type { ServerEvent } from "../api/events";
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
  if (series.value === null) return <Found of={series} />;
  const groups = groupsOf([...series.value.items, ...beside.items]);
  if (groups.length === 0) {
    return (
      <Empty>No curves yet. A job prints them, or logs them to TensorBoard, W&B or MLflow.</Empty>
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
      <ErrorNote error={beside.error} />
      <div class="columns">
        {groups.map(([name, members]) => {
          const { xs, curves, isTime } = curvesOf(members, smoothing);
          return (
            <Card key={name} title={name}>
              <Chart
                xs={xs}
                curves={curves}
                label={name}
                isTime={isTime}
                isLogarithmic={isLogarithmic}
              />
            </Card>
          );
        })}
      </div>
    </div>
  );
}

/** Series that belong in one chart, by its title: the losses, each kind of reading of all
 * GPUs, and each of the others alone. What a program says comes before what was measured. */
function groupsOf(series: readonly Series[]): [string, Series[]][] {
  const groups = new Map<string, Series[]>();
  for (const one of series) {
    const title = titleOf(one.name);
    groups.set(title, [...(groups.get(title) ?? []), one]);
  }
  const isMeasured = ([, members]: [string, Series[]]) =>
    members[0]!.name.startsWith("system/") ? 1 : 0;
  return [...groups].sort((a, b) => isMeasured(a) - isMeasured(b) || a[0].localeCompare(b[0]));
}

const READINGS: Record<string, string> = {
  "system/cpu_cores": "CPU, cores",
  "system/memory_mb": "Memory, MB",
  "system/disk_mb": "Disk, MB",
  "system/gpu_memory_mb": "GPU memory, MB",
  "system/gpu_utilization": "GPU in use, of 1",
};

function titleOf(name: string): string {
  if (/(^|[/_])loss$/.test(name)) return "loss";
  const reading = name.replace(/^system\/gpu\d+_/, "system/gpu_");
  return READINGS[reading] ?? reading;
}

// --- other runs ---

const MOST_RUNS = 50;

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

interface SeriesOfOthers {
  items: Series[];
  error: Error | null;
}

/** What these jobs have said of themselves. What their machines measured is of other times. */
function useSeriesOf(ids: readonly string[]): SeriesOfOthers {
  const [found, setFound] = useState<SeriesOfOthers>({ items: [], error: null });
  useEffect(() => {
    const asking = new AbortController();
    Promise.all(ids.map((id) => seriesOf(id, asking.signal)))
      .then((all) => setFound({ items: all.flat(), error: null }))
      .catch((error: Error) => !asking.signal.aborted && setFound({ items: [], error }));
    return () => asking.abort();
  }, [ids.join(",")]);
  return found;
}

async function seriesOf(id: string, signal: AbortSignal): Promise<Series[]> {
  const path = `/api/v1/jobs/${encodeURIComponent(id)}/metrics`;
  const { items } = await get<{ items: Series[] }>(path, { points: 1000 }, signal);
  const own = items.filter(({ name }) => !name.startsWith("system/"));
  return own.map((series) => ({ ...series, run: format.shortId(id) }));
}
