// How many jobs end, in each minute of the last hour or each hour of the last day.

import { useState } from "preact/hooks";

import type { Schemas } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Card, Found } from "../ui/parts";

type Throughput = Schemas["Throughput"];
type Step = Throughput["by"];
type Outcome = readonly [name: string, tone: string];

/** From the bottom of a bar to its top. */
const OUTCOMES: readonly Outcome[] = [
  ["completed", "good"],
  ["cancelled", "plain"],
  ["timed_out", "warn"],
  ["failed", "bad"],
];
const WATCHED = { isWatched: true };
const SPANS: Record<Step, string> = { minute: "the last hour", hour: "the last day" };

export function JobThroughput() {
  const [by, setBy] = useState<Step>("minute");
  const found = useResource<Throughput>("/api/v1/throughput", { by }, WATCHED);
  return (
    <Card
      title="Jobs that ended"
      action={
        <select
          aria-label="Count the jobs that ended"
          value={by}
          onChange={(event) => setBy(event.currentTarget.value as Step)}
        >
          <option value="minute">in each minute</option>
          <option value="hour">in each hour</option>
        </select>
      }
    >
      <Found of={found} />
      {found.value && <Bars throughput={found.value} />}
    </Card>
  );
}

function Bars({ throughput }: { throughput: Throughput }) {
  const { by, ended, begins_at: beginsAt } = throughput;
  const columns = columnsOf(ended);
  const most = Math.max(...columns.map(sum), 0);
  const highest = Math.max(most, 1);
  const totals = OUTCOMES.map(([name]) => [name, sum(ended[name] ?? [])] as const);
  const inWords = totals
    .filter(([name, total]) => total > 0 || name === "completed")
    .map(([name, total]) => `${format.count(total)} ${name.replace("_", " ")}`)
    .join(", ");
  const inAll = most ? `${inWords}; at most ${format.count(most)} in a ${by}` : "none";
  return (
    <>
      <svg
        class="bars"
        viewBox={`0 0 ${columns.length} ${highest}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`Jobs that ended in ${SPANS[by]}: ${inAll}`}
      >
        {columns.map((column, at) => (
          <Bar key={at} at={at} column={column} highest={highest} />
        ))}
      </svg>
      <div class="row wide quiet small">
        <span>{format.clockTime(beginsAt)}</span>
        <span>{inAll}</span>
        <span>now</span>
      </div>
    </>
  );
}

interface BarProps {
  at: number;
  /** A count for each outcome, in their order. */
  column: readonly number[];
  highest: number;
}

function Bar({ at, column, highest }: BarProps) {
  let top = highest;
  return (
    <>
      {column.map((count, index) => {
        if (count === 0) return null;
        top -= count;
        const [name, tone] = OUTCOMES[index]!;
        return <rect key={name} class={tone} x={at + 0.1} y={top} width={0.8} height={count} />;
      })}
    </>
  );
}

function columnsOf(ended: Throughput["ended"]): number[][] {
  const steps = ended["completed"]?.length ?? 0;
  return Array.from({ length: steps }, (_, step) =>
    OUTCOMES.map(([name]) => ended[name]?.[step] ?? 0),
  );
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}
