// What came of a run of a study: its strategies, the best first, and a plot of them.

import type { Schemas } from "../api/client";
import * as format from "../format";
import { Badge, Card, Meter } from "../ui/parts";

type Result = Schemas["StudyResult"];
type Strategy = Schemas["StrategyResult"];
const WIDTH = 640;
const HEIGHT = 260;
const LEFT = 56;
const BOTTOM = 40;
const MARK = 11;

export function StudyResultCard({ result }: { result: Result }) {
  const ranked = [...result.strategies].sort((one, other) => placeOf(one) - placeOf(other));
  return (
    <Card
      title={`${result.study}: ${result.run}`}
      action={
        <span class="quiet">
          {result.model} · objective: {result.objective} · {format.time(result.at)}
        </span>
      }
    >
      <p>
        {result.best ? (
          <Badge tone="good">{result.best} is best</Badge>
        ) : (
          <Badge tone="warn">none is best</Badge>
        )}{" "}
        {result.reason}
      </p>
      <Plot run={result.run} strategies={ranked} />
      <Ranking result={result} strategies={ranked} />
      {result.warnings?.map((warning) => (
        <p key={warning} class="quiet small">
          {warning}
        </p>
      ))}
    </Card>
  );
}

/** Those that are not ranked come last, in their order. */
function placeOf(strategy: Strategy): number {
  return strategy.rank ?? Number.MAX_SAFE_INTEGER;
}

function Ranking({ result, strategies }: { result: Result; strategies: Strategy[] }) {
  const fastest = Math.max(...strategies.map((one) => one.tokens_per_s ?? 0), 1e-9);
  return (
    <div class="scrolls" role="region" aria-label={`Ranking of ${result.run}`} tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th class="number">Rank</th>
            <th>Strategy</th>
            <th class="number">GPUs</th>
            <th class="number">Agrees with {result.agreement_with}</th>
            <th class="bar">Tokens per second</th>
            <th class="number">Median, ms</th>
            <th class="number">p90, ms</th>
            <th class="number">GPU hours</th>
            <th class="number">Cost</th>
            <th class="number">Speed-up</th>
            <th>Not ranked</th>
          </tr>
        </thead>
        <tbody>
          {strategies.map((one) => (
            <tr key={one.strategy_id}>
              <td class="number">{one.rank ?? "–"}</td>
              <td>{one.strategy_id}</td>
              <td class="number">{one.gpus ?? "–"}</td>
              <td class="number">
                {typeof one.agreement === "number" ? `${(one.agreement * 100).toFixed(1)}%` : "–"}
              </td>
              <td class="bar">
                <span class="stack tight">
                  <span>{format.figure(one.tokens_per_s)}</span>
                  <Meter
                    share={(one.tokens_per_s ?? 0) / fastest}
                    label={`Tokens per second of ${one.strategy_id}, beside the fastest`}
                  />
                </span>
              </td>
              <td class="number">{format.figure(one.latency_ms_p50)}</td>
              <td class="number">{format.figure(one.latency_ms_p90)}</td>
              <td class="number">{format.figure(one.gpu_hours)}</td>
              <td class="number">
                {typeof one.cost === "number"
                  ? format.money(String(one.cost), result.currency)
                  : "–"}
              </td>
              <td class="number">{format.figure(one.speed_up)}</td>
              <td class="words quiet">{one.not_ranked || "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface Point {
  name: string;
  mark: string;
  latency: number;
  pace: number;
}

/** Throughput over latency: the best stand at the top left. Numbers are ranks. */
function Plot({ run, strategies }: { run: string; strategies: Strategy[] }) {
  const points = strategies.flatMap(pointOf);
  if (points.length < 2) return null;
  const latest = Math.max(...points.map((point) => point.latency)) * 1.1;
  const fastest = Math.max(...points.map((point) => point.pace)) * 1.15;
  const x = (latency: number) => LEFT + (latency / latest) * (WIDTH - LEFT - MARK);
  const y = (pace: number) => HEIGHT - BOTTOM - (pace / fastest) * (HEIGHT - BOTTOM);
  const told = points.map(
    ({ name, latency, pace }) => `${name} ${format.figure(pace)} at ${format.figure(latency)} ms`,
  );
  return (
    <svg
      class="chart"
      role="img"
      aria-label={`Tokens per second over latency of ${run}: ${told.join(", ")}`}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      width={WIDTH}
      height={HEIGHT}
      style={{ maxWidth: "100%", height: "auto" }}
      font-size="12"
    >
      <g stroke="var(--line)">
        <line x1={LEFT} x2={LEFT} y1={0} y2={HEIGHT - BOTTOM} />
        <line x1={LEFT} x2={WIDTH} y1={HEIGHT - BOTTOM} y2={HEIGHT - BOTTOM} />
      </g>
      <g fill="var(--text-quiet)">
        <text x={LEFT - 6} y={12} text-anchor="end">
          {format.figure(Number(fastest.toPrecision(2)))}
        </text>
        <text x={LEFT - 6} y={HEIGHT - BOTTOM} text-anchor="end">
          0
        </text>
        <text x={WIDTH} y={HEIGHT - BOTTOM + 16} text-anchor="end">
          {format.figure(Number(latest.toPrecision(2)))}
        </text>
        <text x={LEFT + 8} y={12}>
          tokens per second
        </text>
        <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 8} text-anchor="middle">
          median latency, ms
        </text>
      </g>
      {points.map(({ name, mark, latency, pace }) => (
        <g key={name}>
          <title>{name}</title>
          <circle cx={x(latency)} cy={y(pace)} r={MARK} fill="var(--accent)" />
          <text
            x={x(latency)}
            y={y(pace) + 4}
            text-anchor="middle"
            fill="var(--on-accent)"
            font-weight="600"
          >
            {mark}
          </text>
        </g>
      ))}
    </svg>
  );
}

function pointOf(strategy: Strategy): Point[] {
  const { strategy_id: name, rank, latency_ms_p50: latency, tokens_per_s: pace } = strategy;
  if (typeof latency !== "number" || typeof pace !== "number") return [];
  return [{ name, mark: rank ? String(rank) : "–", latency, pace }];
}
