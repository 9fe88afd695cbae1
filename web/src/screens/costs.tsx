// What was spent, on whom and on what, and the budgets; bills of clouds, and benchmarks.

import { address, type Schemas } from "../api/client";
import * as format from "../format";
import { serverNow } from "../state/clock";
import { useResource } from "../state/resource";
import { setQuery, usePlace } from "../state/router";
import { session } from "../state/session";
import { Empty, Found, Meter, Tabs } from "../ui/parts";
import { Advice } from "./costs-advice";
import { BenchmarksTab } from "./costs-benchmarks";
import { BillsTab } from "./costs-bills";
import { Budgets } from "./costs-budgets";

const TABS = ["spending", "bills", "benchmarks"] as const;
const CUTS = ["day", "week", "month", "user", "project", "tier", "provider", "gpu"] as const;
const DAY_S = 86_400;
const PERIODS: Record<string, number> = {
  "7 days": 7,
  "30 days": 30,
  "90 days": 90,
  "a year": 365,
};
type Report = Schemas["CostReport"];

export default function CostsScreen() {
  const { query } = usePlace();
  const tabs = TABS.filter((one) => one !== "bills" || session.may("administrator"));
  const tab = tabs.find((one) => one === query.get("show")) ?? "spending";
  const asked = query.get("period") ?? "";
  const period = Object.hasOwn(PERIODS, asked) ? asked : "30 days";
  // To the hour, so that the question stays the same while the page is open.
  const from = Math.floor((serverNow() - PERIODS[period]! * DAY_S) / 3600) * 3600;
  return (
    <>
      <div class="head">
        <h1>Costs</h1>
        <span class="spring" />
        {tab !== "bills" && <Period chosen={period} />}
        {tab === "spending" && (
          <a class="button" href={address("/api/v1/costs/focus", { from })} download="focus.csv">
            Export (FOCUS)
          </a>
        )}
      </div>
      <Tabs
        label="What to show"
        names={tabs}
        chosen={tab}
        titleOf={titleOf}
        onChoose={(one) => setQuery({ show: one })}
      />
      {tab === "spending" && <Spending from={from} />}
      {tab === "bills" && <BillsTab />}
      {tab === "benchmarks" && <BenchmarksTab from={from} />}
    </>
  );
}

function Period({ chosen }: { chosen: string }) {
  return (
    <select
      aria-label="Period"
      value={chosen}
      onChange={(event) => setQuery({ period: event.currentTarget.value })}
    >
      {Object.keys(PERIODS).map((name) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
}

function Spending({ from }: { from: number }) {
  const { query } = usePlace();
  const by = CUTS.find((cut) => cut === query.get("by")) ?? "day";
  const report = useResource<Report>("/api/v1/costs", { by, from }, { everyS: 30 });
  return (
    <>
      <Budgets />
      <Tabs
        label="By"
        names={CUTS}
        chosen={by}
        titleOf={titleOf}
        onChoose={(cut) => setQuery({ by: cut })}
      />
      <Found of={report} />
      {report.value && <ReportTable report={report.value} />}
      <Advice from={from} />
    </>
  );
}

function titleOf(name: string): string {
  return name === "gpu" ? "GPU" : name[0]!.toUpperCase() + name.slice(1);
}

function ReportTable({ report }: { report: Report }) {
  const lines = report.items ?? [];
  if (lines.length === 0) return <Empty>Nothing was spent in this time.</Empty>;
  const largest = Math.max(...lines.map((line) => Number(line.converted ?? 0)), 1e-9);
  return (
    <div class="card scrolls">
      <table>
        <thead>
          <tr>
            <th>{titleOf(report.by)}</th>
            <th class="bar" />
            <th class="number">Cost</th>
            <th class="number">Of that running</th>
            <th class="number">Failed or lost</th>
            <th class="number">GPU hours</th>
            <th class="number">Attempts</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((line) => (
            <tr key={`${line.key} ${line.currency}`}>
              <td>{line.key}</td>
              <td class="bar">
                <Meter share={Number(line.converted ?? 0) / largest} label="Share of the largest" />
              </td>
              <td class="number">{format.cents(line.amount, line.currency)}</td>
              <td class="number">{format.cents(line.running, line.currency)}</td>
              <td class="number">{format.cents(line.waste, line.currency)}</td>
              <td class="number">{format.figure(line.gpu_hours)}</td>
              <td class="number">{format.count(line.attempts)}</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <td>
              <strong>In all</strong>
            </td>
            <td />
            <td class="number">
              <strong>{format.money(report.total, report.currency)}</strong>
            </td>
            <td colSpan={4} />
          </tr>
        </tfoot>
      </table>
    </div>
  );
}
