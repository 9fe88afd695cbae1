// A job's series as curves.

import type { Curve } from "./chart";

export interface Series {
  name: string;
  count: number;
  /** Of which other run it is, if it is of one. */
  run?: string;
  points: { step: number | null; value: number; at: number }[];
}

/** Curves over one x axis: steps, or times where a series has no steps. */
export interface Curves {
  xs: number[];
  curves: Curve[];
  isTime: boolean;
}

export function curvesOf(series: readonly Series[], smoothing: number): Curves {
  const isTime = series.some(({ points }) => points.some((point) => point.step === null));
  const xOf = (point: Series["points"][number]) => (isTime ? point.at : point.step!);
  const xs = [...new Set(series.flatMap(({ points }) => points.map(xOf)))].sort((a, b) => a - b);
  const places = new Map(xs.map((x, at) => [x, at]));
  const curves = series.map(({ name, run, points }) => {
    const values: (number | null)[] = new Array(xs.length).fill(null);
    for (const point of points) values[places.get(xOf(point))!] = point.value;
    return {
      name: run ? `${name} of ${run}` : name,
      values: smoothing > 0 ? smoothed(values, smoothing) : values,
    };
  });
  return { xs, curves, isTime };
}

/** A running mean in which the past weighs `weight`, between 0 and 1. It begins without
 * a pull towards zero. */
export function smoothed(values: readonly (number | null)[], weight: number): (number | null)[] {
  let mean = 0;
  let known = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return value;
    mean = mean * weight + value * (1 - weight);
    known = known * weight + (1 - weight);
    return mean / known;
  });
}
