// The drawings among the components: curves, parallel axes, a graph and a calendar.

import { useState } from "preact/hooks";

import { type Ranges, axisOf } from "../charts/axes";
import { Chart } from "../charts/chart";
import { Graph } from "../charts/graph";
import { Parallel } from "../charts/parallel";
import { Calendar } from "../ui/calendar";
import { Card, StateBadge } from "../ui/parts";
import "../ui/panels.css";

const XS = Array.from({ length: 200 }, (_, at) => at);
const CURVES = [1, 2, 3, 4].map((number) => ({
  name: `curve ${number}`,
  values: XS.map((x) => number + 2 * Math.exp(-x / (30 * number))),
}));
const RATES = ["0.0001", "0.001", "0.01"];
const LINES = RATES.flatMap((rate, at) =>
  ["adamw", "sgd"].map((optimizer, other) => ({
    id: `${rate} ${optimizer}`,
    name: `${rate} ${optimizer}`,
    values: [rate, optimizer, String(at + 2 * other)],
    rank: 1 - (at + 2 * other) / 4,
  })),
);
const AXES = ["rate", "optimizer", "loss"].map((name, at) =>
  axisOf(
    name,
    LINES.map(({ values }) => values[at]!),
  ),
);
const STEPS = [
  { name: "clean", needs: [] },
  { name: "train", needs: ["clean"] },
  { name: "test", needs: ["clean"] },
  { name: "report", needs: ["train", "test"] },
];
const MONTH = new Date(2026, 0, 1);
const SPANS = [{ id: "ana", beginsAt: secondsOf(12), endsAt: secondsOf(15) }];

/** UTC seconds of a day of the month. */
function secondsOf(day: number): number {
  return new Date(2026, 0, day).getTime() / 1000;
}

export function Drawings() {
  const [shown, setShown] = useState<string | null>(null);
  const [ranges, setRanges] = useState<Ranges>({});
  return (
    <>
      <Card title="Curves">
        <Chart xs={XS} curves={CURVES} label="Four curves" />
      </Card>
      <Card title="Parallel axes">
        <Parallel
          axes={AXES}
          lines={LINES}
          label="Six runs"
          shown={shown}
          onShow={setShown}
          ranges={ranges}
          onRanges={setRanges}
        />
      </Card>
      <Card title="What needs what">
        <Graph
          nodes={STEPS}
          label="Four steps"
          draw={({ name }) => (
            <>
              <span class="cut">{name}</span>
              <StateBadge state="queued" />
            </>
          )}
        />
      </Card>
      <Card title="Calendar">
        <div class="scrolls" role="region" aria-label="A month" tabIndex={0}>
          <Calendar
            month={MONTH}
            spans={SPANS}
            draw={({ id }) => (
              <span key={id} class="badge span good">
                {id}
              </span>
            )}
          />
        </div>
      </Card>
    </>
  );
}
