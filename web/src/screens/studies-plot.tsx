// The strategies of a study: throughput over latency. The best stand at the top left.

import { useEffect, useRef, useState } from "preact/hooks";

import type { Schemas } from "../api/client";
import * as format from "../format";
import "../ui/panels.css";

type Strategy = Schemas["StrategyResult"];
const HEIGHT = 280;
const LEFT = 52;
const RIGHT = 12;
const TOP = 28;
const BOTTOM = 44;
const MARK = 11;
const NARROW = 520;
/** About how wide a letter of a name is, and how high a line. */
const LETTER = 7;
const LINE = 15;
const LONGEST = 28;
/** Between two lines of the grid, in each power of ten. */
const STEPS = [1, 2, 2.5, 5, 10];

interface Point {
  id: string;
  name: string;
  mark: string;
  latency: number;
  pace: number;
}

interface Placed extends Point {
  x: number;
  y: number;
}

interface Props {
  run: string;
  strategies: Strategy[];
}

export function StrategyPlot({ run, strategies }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(640);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const resized = new ResizeObserver(() => setWidth(element.clientWidth));
    resized.observe(element);
    return () => resized.disconnect();
  }, []);
  const points = strategies.flatMap(pointOf);
  if (points.length < 2) return null;
  const latencies = gridOf(
    points.map((point) => point.latency),
    width < NARROW ? 3 : 6,
  );
  const paces = gridOf(
    points.map((point) => point.pace),
    4,
  );
  const x = (latency: number) =>
    LEFT + (latency / latencies.at(-1)!) * (width - LEFT - RIGHT - MARK);
  const y = (pace: number) => HEIGHT - BOTTOM - (pace / paces.at(-1)!) * (HEIGHT - TOP - BOTTOM);
  const placed = points.map((point) => ({ ...point, x: x(point.latency), y: y(point.pace) }));
  const named = new Set(width < NARROW ? [] : namesThatFit(placed, width));
  const told = points.map(
    ({ name, latency, pace }) => `${name} ${format.figure(pace)} at ${format.figure(latency)} ms`,
  );
  return (
    <div ref={box}>
      <svg
        class="plot"
        role="img"
        aria-label={`Tokens per second over latency of ${run}: ${told.join(", ")}`}
        width={width}
        height={HEIGHT}
      >
        {paces.map((pace) => (
          <g key={pace}>
            <line x1={LEFT} x2={width - RIGHT} y1={y(pace)} y2={y(pace)} />
            <text x={LEFT - 8} y={y(pace) + 4} text-anchor="end">
              {format.figure(pace)}
            </text>
          </g>
        ))}
        {latencies.map((latency) => (
          <text key={latency} x={x(latency)} y={HEIGHT - BOTTOM + 18} text-anchor="middle">
            {format.figure(latency)}
          </text>
        ))}
        <text x={0} y={12}>
          Tokens per second
        </text>
        <text x={width - RIGHT} y={HEIGHT - 6} text-anchor="end">
          Median latency, ms
        </text>
        {points.map((point) => (
          <g key={point.id} class="point">
            <circle cx={x(point.latency)} cy={y(point.pace)} r={MARK} />
            <text x={x(point.latency)} y={y(point.pace) + 4} text-anchor="middle">
              {point.mark}
            </text>
            {named.has(point.id) && (
              <text class="name" x={x(point.latency)} y={y(point.pace) + 26} text-anchor="middle">
                {short(point.name)}
              </text>
            )}
            <title>{point.name}</title>
          </g>
        ))}
      </svg>
    </div>
  );
}

/** The points, of many, whose names cover neither another name nor another mark. */
function namesThatFit(points: readonly Placed[], width: number): string[] {
  const fit: { left: number; right: number; y: number }[] = [];
  const ids: string[] = [];
  for (const point of points) {
    const half = (short(point.name).length * LETTER) / 2;
    const box = { left: point.x - half, right: point.x + half, y: point.y + 22 };
    const isInside = box.left >= 0 && box.right <= width;
    const isFree =
      fit.every(
        (one) => one.right < box.left || one.left > box.right || Math.abs(one.y - box.y) > LINE,
      ) &&
      points.every(
        (one) =>
          one.id === point.id ||
          one.x + MARK < box.left ||
          one.x - MARK > box.right ||
          Math.abs(one.y - box.y) > MARK + LINE / 2,
      );
    if (isInside && isFree) {
      fit.push(box);
      ids.push(point.id);
    }
  }
  return ids;
}

function short(name: string): string {
  return name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name;
}

/** As its study calls it, or else its id. */
export function nameOf(strategy: Strategy): string {
  return strategy.label || strategy.strategy_id;
}

/** Round values from 0 to beyond the largest, about `count` steps apart. */
function gridOf(values: readonly number[], count: number): number[] {
  const rough = (Math.max(...values) * 1.05) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * STEPS.find((one) => one * power >= rough)!;
  return Array.from({ length: count + 1 }, (_, at) => at * step).filter(
    (value) => value < Math.max(...values) * 1.05 + step,
  );
}

function pointOf(strategy: Strategy): Point[] {
  const { strategy_id: id, rank, latency_ms_p50: latency, tokens_per_s: pace } = strategy;
  if (typeof latency !== "number" || typeof pace !== "number") return [];
  return [{ id, name: nameOf(strategy), mark: rank ? String(rank) : "–", latency, pace }];
}
