// The sizes side by side: what each has, and what a run on it costs.

import * as format from "../format";
import { useResource } from "../state/resource";
import { Badge, Card, ErrorNote } from "../ui/parts";
import type { Recommendation, SizeRow } from "./recommendation";

/** See `GET /api/v1/tiers`. */
export interface Size {
  id: string;
  name: string;
  description: string;
  cpu: number;
  memory: string;
  gpu?: { count: number; memory: string };
  maxRuntime: number;
  costPerHour: number;
  currency: string;
}

export function useSizes() {
  return useResource<{ items: Size[] }>("/api/v1/tiers");
}

/** A run of so many hours on a size, as far as the recommendation knows better. */
function runOf(size: Size, row: SizeRow | undefined, hours: number) {
  const perHour = size.costPerHour * (row?.units ?? 1);
  const taken = row?.hours ?? hours;
  return { perHour, hours: taken, cost: perHour * taken, isLong: taken * 3600 > size.maxRuntime };
}

export function SizesCard(props: {
  sizes: readonly Size[];
  error: Error | null;
  found: Recommendation | null;
  chosen: string;
  hours: string;
  onHours: (hours: string) => void;
  onChoose: (tier: string) => void;
}) {
  const { sizes, found, chosen } = props;
  const rows = new Map(found?.tiers.map((row) => [row.id, row]));
  const hours = Math.max(Number(props.hours) || 0, 0);
  return (
    <Card
      title="Sizes and what they cost"
      action={
        <label class="row quiet">
          a run of
          <input
            class="figure-field"
            type="number"
            min="0"
            step="any"
            value={props.hours}
            onInput={(event) => props.onHours(event.currentTarget.value)}
          />
          hours
        </label>
      }
    >
      <ErrorNote error={props.error} />
      <Warning {...props} />
      <div class="scrolls" tabIndex={0} role="group" aria-label="Sizes">
        <table>
          <thead>
            <tr>
              <th class="named">Size</th>
              <th class="number">An hour</th>
              <th class="number">The run</th>
              <th />
            </tr>
          </thead>
          <tbody>
            {sizes.map((size) => {
              const row = rows.get(size.id);
              const run = runOf(size, row, hours);
              return (
                <tr key={size.id} class={row?.suits === false ? "quiet" : undefined}>
                  <td>
                    <span class="row">
                      {size.name}
                      {found?.tier === size.id && <Badge tone="good">suits</Badge>}
                    </span>
                    <span class="small block">{partsOf(size, row?.units ?? 1)}</span>
                    <span class="quiet small block">{row?.reason ?? size.description}</span>
                  </td>
                  <td class="number">{format.money(String(run.perHour), size.currency)}</td>
                  <td class="number">
                    {format.money(String(run.cost), size.currency)}
                    {run.isLong && (
                      <span class="quiet small block">
                        limit {format.duration(size.maxRuntime)}
                      </span>
                    )}
                  </td>
                  <td>
                    <button
                      type="button"
                      class="button"
                      aria-pressed={chosen === size.id}
                      aria-label={`Choose ${size.name}`}
                      onClick={() => props.onChoose(chosen === size.id ? "" : size.id)}
                    >
                      Choose
                    </button>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

/** Says so where the chosen size costs more than one that suits as well. */
function Warning({
  sizes,
  found,
  chosen,
}: {
  sizes: readonly Size[];
  found: Recommendation | null;
  chosen: string;
}) {
  const mine = sizes.find((size) => size.id === chosen);
  const rows = found?.tiers ?? [];
  const suiting = rows.filter((row) => row.suits).sort((a, b) => a.per_hour - b.per_hour);
  const cheapest = suiting[0];
  const unfit = rows.find((row) => row.id === chosen && !row.suits);
  if (!mine) return null;
  if (unfit) {
    return (
      <p class="warning" role="status">
        {mine.name} does not suit this program: it {unfit.reason}.
      </p>
    );
  }
  const ratio = cheapest ? mine.costPerHour / cheapest.per_hour : 1;
  if (!cheapest || ratio <= 1.05) return null;
  return (
    <p class="warning" role="status">
      {mine.name} costs {format.figure(ratio)} times as much as{" "}
      {sizes.find((size) => size.id === cheapest.id)?.name}, which suits as well.
    </p>
  );
}

/** "1 × 16 GB GPU, 4 CPUs, 16 GB". */
function partsOf({ gpu, cpu, memory }: Size, units: number): string {
  const gpus = gpu && `${gpu.count * units} × ${inGb(gpu.memory)} GPU`;
  const cpus = `${cpu} CPU${cpu === 1 ? "" : "s"}`;
  return [gpus, cpus, inGb(memory)].filter(Boolean).join(", ");
}

/** "16Gi" and "512Mi" as people write them. */
function inGb(memory: string): string {
  const value = parseFloat(memory);
  return memory.endsWith("Mi") ? `${value} MB` : `${value} GB`;
}
