// What came of a run of a study: its strategies, the best first, and a plot of them.

import type { Schemas } from "../api/client";
import * as format from "../format";
import { Badge, Card, Meter } from "../ui/parts";
import { nameOf, StrategyPlot } from "./studies-plot";

type Result = Schemas["StudyResult"];
type Strategy = Schemas["StrategyResult"];

export function StudyResultCard({ result }: { result: Result }) {
  const winner = result.strategies.find((one) => one.strategy_id === result.best);
  const best = winner ? nameOf(winner) : result.best;
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
        {best ? <Badge tone="good">{best} is best</Badge> : <Badge tone="warn">none is best</Badge>}{" "}
        {result.reason}
      </p>
      <StrategyPlot run={result.run} strategies={ranked} />
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
              <td>{nameOf(one)}</td>
              <td class="number">{one.gpus ?? "–"}</td>
              <td class="number">
                {typeof one.agreement === "number"
                  ? `${(one.agreement * 100).toFixed(1)}\u00a0%`
                  : "–"}
              </td>
              <td class="bar">
                <span class="stack tight">
                  <span>{format.figure(one.tokens_per_s)}</span>
                  <Meter
                    share={(one.tokens_per_s ?? 0) / fastest}
                    label={`Tokens per second of ${nameOf(one)}, beside the fastest`}
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
