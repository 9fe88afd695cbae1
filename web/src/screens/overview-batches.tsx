// The newest batches, and how many prompts and scripts wait.

import * as format from "../format";
import { useResource } from "../state/resource";
import { Badge, Card, ErrorNote, Link, Meter, StateBadge } from "../ui/parts";

interface Batch {
  batch_id: string;
  script: string;
  state: string;
  total_items: number;
  completed: number;
  eta_s: number | null;
  ended_at: number | null;
  gpu_mode: string;
}

interface Queue {
  name: string;
  waiting: number;
}

const WATCHED = { isWatched: true };
const SHOWN = 3;
/** One, and many. Jobs wait in one queue with the items of batches. */
const WORDS: Record<string, readonly [string, string]> = {
  llm: ["prompt", "prompts"],
  script: ["job or item", "jobs and items"],
};

/** Nothing, where nobody has ever used a batch or a model. */
export function Batches() {
  const batches = useResource<{ items: Batch[] }>("/api/v1/batches", {}, WATCHED);
  const queues = useResource<{ items: Queue[] }>("/api/v1/queues", {}, WATCHED);
  const newest = (batches.value?.items ?? []).slice(0, SHOWN);
  const waiting = (queues.value?.items ?? []).filter((queue) => queue.waiting > 0);
  if (newest.length === 0 && waiting.length === 0) return <ErrorNote error={batches.error} />;
  const inWords = waiting.map(
    ({ name, waiting: count }) =>
      `${format.count(count)} ${WORDS[name]?.[count === 1 ? 0 : 1] ?? name}`,
  );
  return (
    <Card
      title="Batches"
      action={inWords.length > 0 && <span class="quiet">{inWords.join(", ")} waiting</span>}
    >
      {newest.map((batch) => (
        <div key={batch.batch_id} class="stack tight">
          <div class="row wide">
            <Link to={`/batches/${batch.batch_id}`} class="cut">
              {batch.script}
            </Link>
            <span class="row">
              <span class="quiet small">
                {format.count(batch.completed)} of {format.count(batch.total_items)}
                {batch.eta_s ? `, ${format.duration(batch.eta_s)} left` : ""}
              </span>
              {/* Nothing else starts while it goes on. */}
              {batch.gpu_mode === "exclusive" && batch.ended_at === null && (
                <Badge tone="warn">has all GPUs</Badge>
              )}
              <StateBadge state={batch.state} />
            </span>
          </div>
          <Meter
            share={batch.completed / Math.max(batch.total_items, 1)}
            label={`Items done of ${batch.script}`}
          />
        </div>
      ))}
    </Card>
  );
}
