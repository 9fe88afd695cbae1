// Pools: how many nodes each has, what waits for them, and why they grow or do not.

import { useState } from "preact/hooks";

import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useListing } from "../state/pages";
import { useResource } from "../state/resource";
import { Badge, Dialog, Empty, ErrorNote, Found, Loading, Meter, type Tone } from "../ui/parts";

/** See `GET /api/v1/pools`. */
interface Pool {
  name: string;
  provider: string;
  size: string | null;
  min: number;
  max: number;
  idle_s: number;
  nodes: Record<string, number>;
  waiting: number;
  why: string;
  problem: string | null;
  boot_s: number;
  cost_per_hour: Record<string, string>;
  cost: Record<string, string>;
}

interface PoolNode {
  id: string;
  name: string;
  state: string;
  size: string;
  reference: string | null;
  node_id: string | null;
  asked_at: number;
  ended_at: number | null;
  price_per_hour: string | null;
  currency: string;
  cost: string | null;
  why: string;
}

const TONES: Record<string, Tone> = {
  asked: "busy",
  booting: "busy",
  joined: "good",
  draining: "warn",
  ending: "warn",
};
const isAboutPools = (event: ServerEvent) => event.kind.startsWith("pool.");

export function Pools() {
  const pools = useResource<{ items: Pool[] }>("/api/v1/pools", {}, { isWatched: true });
  const [shown, setShown] = useState<string | null>(null);
  return (
    <>
      <h2>Pools</h2>
      <Found of={pools} />
      {pools.value?.items.length === 0 && (
        <Empty>
          There is no pool. <code>[pools.NAME]</code> in the settings of the server keeps nodes
          ready at a provider.
        </Empty>
      )}
      <div class="columns few">
        {pools.value?.items.map((pool) => (
          <PoolCard key={pool.name} pool={pool} onNodes={() => setShown(pool.name)} />
        ))}
      </div>
      {shown !== null && <Nodes pool={shown} onClose={() => setShown(null)} />}
    </>
  );
}

function PoolCard({ pool, onNodes }: { pool: Pool; onNodes: () => void }) {
  const live = Object.entries(pool.nodes).filter(([, count]) => count > 0);
  const count = live.reduce((total, [, one]) => total + one, 0);
  return (
    <article class="card" aria-label={`Pool ${pool.name}`}>
      <div class="row wide">
        <h3 class="cut">{pool.name}</h3>
        <button type="button" class="button" onClick={onNodes}>
          Nodes<span class="hidden-text"> of {pool.name}</span>
        </button>
      </div>
      <span class="quiet cut">
        {pool.provider}
        {pool.size && `, ${pool.size}`}
      </span>
      <Meter share={count / Math.max(pool.max, 1)} label={`Nodes of ${pool.name}`} />
      <div class="row wrap">
        <span>
          {count} {count === 1 ? "node" : "nodes"} (min {pool.min}, max {pool.max})
        </span>
        {live.map(([state, number]) => (
          <Badge key={state} tone={TONES[state] ?? "plain"}>
            {number} {state}
          </Badge>
        ))}
      </div>
      {pool.problem ? <p class="warning">{pool.problem}</p> : <p>{sentence(pool.why)}</p>}
      <dl class="facts">
        <dt>Jobs that wait</dt>
        <dd>{format.count(pool.waiting)}</dd>
        <dt>A node comes in</dt>
        <dd>{format.duration(pool.boot_s)}</dd>
        <dt>Goes when idle for</dt>
        <dd>{format.duration(pool.idle_s)}</dd>
        <dt>An hour</dt>
        <dd>{amountsOf(pool.cost_per_hour)}</dd>
        <dt>Cost so far</dt>
        <dd>{amountsOf(pool.cost)}</dd>
      </dl>
    </article>
  );
}

function Nodes({ pool, onClose }: { pool: string; onClose: () => void }) {
  const path = `/api/v1/pools/${encodeURIComponent(pool)}/nodes`;
  const found = useListing<PoolNode>(path, {}, isAboutPools);
  const now = useNow();
  const nodes = found.items;
  // All that is shown is kept up to date.
  found.see(0, nodes.length);
  return (
    <Dialog title={`The nodes of ${pool}, the newest first`} onClose={onClose}>
      <ErrorNote error={found.error} />
      {found.hasMore && nodes.length === 0 && !found.error && <Loading />}
      {!found.hasMore && nodes.length === 0 && <Empty>It has had no node yet.</Empty>}
      {nodes.length > 0 && (
        <div class="scrolls" tabIndex={0} role="region" aria-label={`Nodes of ${pool}`}>
          <table>
            <thead>
              <tr>
                <th class="named">Node</th>
                <th>State</th>
                <th class="number">Asked for</th>
                <th class="number">Cost</th>
              </tr>
            </thead>
            <tbody>
              {nodes.map((node) => (
                <tr key={node.id}>
                  <td>
                    {node.name}
                    <span class="quiet small block">
                      {[node.size, node.reference].filter(Boolean).join(", ")}
                    </span>
                    <span class="quiet small block">{node.why}</span>
                  </td>
                  <td>
                    <Badge tone={TONES[node.state] ?? "plain"}>{node.state}</Badge>
                  </td>
                  <td class="number quiet">{format.ago(node.asked_at, now)}</td>
                  <td class="number">{format.money(node.cost, node.currency)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <div class="row">
        {found.hasMore && nodes.length > 0 && (
          <button type="button" class="button" onClick={found.more}>
            Show older ones
          </button>
        )}
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function sentence(text: string): string {
  return text && `${text[0]!.toUpperCase()}${text.slice(1)}.`;
}

function amountsOf(amounts: Record<string, string>): string {
  const found = Object.entries(amounts);
  return found.map(([currency, amount]) => format.money(amount, currency)).join(", ") || "–";
}
