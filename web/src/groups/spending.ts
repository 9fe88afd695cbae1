// What was spent on the last day with work.

import type { Schemas } from "../api/client";

type Report = Schemas["CostReport"];

export interface DaySpent {
  /** Such as 2026-11-30; none where nothing was spent. */
  day: string | undefined;
  amount: string;
  currency: string | undefined;
}

/** Of a report by day. A day with several currencies has a line for each. */
export function lastDay(report: Report): DaySpent {
  const items = report.items ?? [];
  const last = items.at(-1);
  if (!last) return { day: undefined, amount: "0", currency: report.currency };
  const lines = items.filter(({ key }) => key === last.key);
  if (lines.length === 1) return { day: last.key, amount: last.amount, currency: last.currency };
  const sum = lines.reduce((total, line) => total + Number(line.converted ?? 0), 0);
  return { day: last.key, amount: String(sum), currency: report.currency };
}
