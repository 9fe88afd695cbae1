// What this instance's own runs measured: how fast programs ran on each size, and what it cost.

import type { Schemas } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Card, Empty, Found } from "../ui/parts";

type Report = Schemas["BenchmarkReport"];
type Size = Schemas["MeasuredSize"];
type Program = Schemas["BenchmarkedProgram"];
const MOST_PROGRAMS = 200;

export function BenchmarksTab({ from }: { from: number }) {
  const found = useResource<Report>("/api/v1/costs/benchmarks", { from });
  const report = found.value;
  if (report === null) return <Found of={found} />;
  if (report.runs === 0) return <Empty>No job of a second or more completed in this time.</Empty>;
  const jobs = report.runs === 1 ? "1 job" : `${format.count(report.runs)} jobs`;
  return (
    <>
      <Found of={found} />
      <p class="quiet">Medians of {jobs} that completed in this time, each in one go.</p>
      <Card title="Sizes">
        <Sizes sizes={report.sizes ?? []} />
      </Card>
      <Card title="Programs">
        <Programs programs={report.programs ?? []} />
      </Card>
    </>
  );
}

function Sizes({ sizes }: { sizes: Size[] }) {
  return (
    <div class="scrolls" role="region" aria-label="Sizes" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th class="named">GPU</th>
            <th class="number">GPUs</th>
            <th>Tier</th>
            <th class="number">Runs</th>
            <th class="number">Programs</th>
            <th class="number">Time</th>
            <th class="number">Cost</th>
            <th class="number">GPU busy</th>
          </tr>
        </thead>
        <tbody>
          {sizes.map((size) => (
            <tr key={`${size.gpu} ${size.gpus} ${size.tier} ${size.currency}`}>
              <td>{size.gpu || "no GPU"}</td>
              <td class="number">{size.gpus}</td>
              <td>{size.tier ?? "–"}</td>
              <td class="number">{format.count(size.runs)}</td>
              <td class="number">{format.count(size.programs)}</td>
              <td class="number">{format.duration(size.seconds)}</td>
              <td class="number">{format.money(size.cost, size.currency)}</td>
              <td class="number">{percent(size.gpu_used)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Programs({ programs }: { programs: Program[] }) {
  const more = programs.length - MOST_PROGRAMS;
  return (
    <>
      <div class="scrolls" role="region" aria-label="Programs" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th class="named">Program</th>
              <th>User</th>
              <th>GPU</th>
              <th>Tier</th>
              <th class="number">Runs</th>
              <th class="number">Time</th>
              <th class="number">Per second</th>
              <th class="number">Cost</th>
              <th class="number">Cost per epoch</th>
              <th class="number">Speedup</th>
            </tr>
          </thead>
          <tbody>
            {programs.slice(0, MOST_PROGRAMS).map((one) => (
              <ProgramRow key={keyOf(one)} program={one} />
            ))}
          </tbody>
        </table>
      </div>
      {more > 0 && (
        <p class="quiet">
          {format.count(more)} more: <code>gpuyard report --benchmarks --csv</code>
        </p>
      )}
    </>
  );
}

function keyOf(one: Program): string {
  return JSON.stringify([one.program, one.user, one.gpu, one.gpus, one.tier, one.currency]);
}

function ProgramRow({ program: one }: { program: Program }) {
  return (
    <tr>
      <td class="breaks">{one.program}</td>
      <td>{one.user}</td>
      <td>{one.gpu ? `${one.gpus} × ${one.gpu}` : "no GPU"}</td>
      <td>{one.tier ?? "–"}</td>
      <td class="number">{format.count(one.runs)}</td>
      <td class="number">{format.duration(one.seconds)}</td>
      <td class="number">{ratesOf(one)}</td>
      <td class="number">{format.money(one.cost, one.currency)}</td>
      <td class="number">{format.money(one.cost_per_epoch, one.currency)}</td>
      <td class="number">{speedupOf(one)}</td>
    </tr>
  );
}

function ratesOf(one: Program): string {
  const rates: [string, number | null | undefined][] = [
    ["samples", one.samples_per_s],
    ["tokens", one.tokens_per_s],
    ["steps", one.steps_per_s],
  ];
  const known = rates.filter(([, rate]) => rate !== null && rate !== undefined);
  return known.map(([name, rate]) => `${format.figure(rate)} ${name}`).join(", ") || "–";
}

/** How many times as fast it is as on the fewest GPUs of its class. */
function speedupOf({ speedup, efficiency, compared_by: by }: Program): string {
  if (speedup === null || speedup === undefined) return "–";
  return `${format.figure(speedup)} (${percent(efficiency)} each, by ${by})`;
}

function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}
