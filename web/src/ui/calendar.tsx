// A month as a calendar shows it, with what lasts for days.

import type { ComponentChildren } from "preact";

export interface Span {
  id: string;
  /** UTC seconds. */
  beginsAt: number;
  endsAt: number;
}

interface Props<T extends Span> {
  /** A day of the month that is shown. */
  month: Date;
  spans: readonly T[];
  draw: (span: T) => ComponentChildren;
}

const DAYS = 7;

export function Calendar<T extends Span>({ month, spans, draw }: Props<T>) {
  const weeks = weeksOf(month);
  const today = new Date().toDateString();
  return (
    <table class="calendar">
      <caption class="hidden-text">{monthName(month)}</caption>
      <thead>
        <tr>
          {weeks[0]!.map((day) => (
            <th key={day.getDay()}>{day.toLocaleDateString("en", { weekday: "short" })}</th>
          ))}
        </tr>
      </thead>
      <tbody>
        {weeks.map((week) => (
          <tr key={week[0]!.toDateString()}>
            {week.map((day) => (
              <td
                key={day.toDateString()}
                class={day.getMonth() === month.getMonth() ? "" : "other"}
                aria-current={day.toDateString() === today ? "date" : undefined}
              >
                <span class="day">{day.getDate()}</span>
                {spans.filter((span) => isOn(span, day)).map(draw)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function monthName(month: Date): string {
  return month.toLocaleDateString("en", { month: "long", year: "numeric" });
}

export function otherMonth(month: Date, away: number): Date {
  return new Date(month.getFullYear(), month.getMonth() + away, 1);
}

/** The weeks, from Monday on, that have a day of this month. */
function weeksOf(month: Date): Date[][] {
  const first = otherMonth(month, 0);
  const before = (first.getDay() + DAYS - 1) % DAYS;
  const after = otherMonth(month, 1);
  const weeks: Date[][] = [];
  for (let at = 1 - before; ; at += DAYS) {
    const week = Array.from(
      { length: DAYS },
      (_, day) => new Date(first.getFullYear(), first.getMonth(), at + day),
    );
    if (week[0]! >= after) return weeks;
    weeks.push(week);
  }
}

function isOn(span: Span, day: Date): boolean {
  const begin = day.getTime() / 1000;
  const next = new Date(day.getFullYear(), day.getMonth(), day.getDate() + 1);
  return span.beginsAt < next.getTime() / 1000 && span.endsAt > begin;
}
