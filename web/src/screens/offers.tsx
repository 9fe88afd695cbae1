// Where jobs can go besides this instance's own machines, and what that costs.

import * as format from "../format";
import { useResource } from "../state/resource";
import { setQuery, usePlace } from "../state/router";
import { Badge, Card, Empty, Found, type Tone } from "../ui/parts";

/** See `GET /api/v1/providers`. */
interface Provider {
  name: string;
  status: string;
  message?: string | null;
  waiting: number;
  running: number;
  quarantine: string | null;
  success_rate_hour: number | null;
  success_rate_day: number | null;
}

/** See `GET /api/v1/offers`. */
interface Offer {
  id: string;
  provider: string;
  gpu: string;
  gpus: number;
  gpu_memory_gb: number;
  cpus: number;
  memory_gb: number;
  nodes: number;
  region: string;
  spot: boolean;
  currency: string;
  price_per_hour: string | null;
  price_source: string;
  billed: boolean;
  problem: string | null;
  trust: number | null;
  wait_s: number | null;
  failed: number;
  interrupted: number;
}

const LOOK_AGAIN_S = 10;

export default function OffersScreen() {
  return (
    <>
      <div class="head">
        <h1>Providers and offers</h1>
      </div>
      <Providers />
      <Offers />
    </>
  );
}

const TONES: Record<string, Tone> = { healthy: "good", degraded: "warn", unhealthy: "bad" };

function Providers() {
  const found = useResource<{ items: Provider[] }>(
    "/api/v1/providers",
    {},
    { everyS: LOOK_AGAIN_S },
  );
  return (
    <>
      <Found of={found} />
      <div class="columns few">
        {found.value?.items.map((provider) => (
          <ProviderCard key={provider.name} provider={provider} />
        ))}
      </div>
    </>
  );
}

function ProviderCard({ provider }: { provider: Provider }) {
  const tone = provider.quarantine ? "bad" : (TONES[provider.status] ?? "plain");
  return (
    <article class="card" aria-label={provider.name}>
      <div class="row wide">
        <h2 class="cut">{provider.name}</h2>
        <Badge tone={tone}>{provider.quarantine ? "in quarantine" : provider.status}</Badge>
      </div>
      {(provider.quarantine ?? provider.message) && (
        <p class="quiet">{provider.quarantine ?? provider.message}</p>
      )}
      <dl class="facts">
        <dt>Running</dt>
        <dd>{format.count(provider.running)}</dd>
        <dt>Waiting</dt>
        <dd>{format.count(provider.waiting)}</dd>
        {provider.success_rate_day !== null && (
          <>
            <dt>Attempts that succeed</dt>
            <dd>
              {share(provider.success_rate_hour)} in the last hour,{" "}
              {share(provider.success_rate_day)} in a day
            </dd>
          </>
        )}
      </dl>
    </article>
  );
}

function share(part: number | null): string {
  return part === null ? "–" : `${format.figure(part * 100)}\u00a0%`;
}

function Offers() {
  const { query } = usePlace();
  const found = useResource<{ items: Offer[]; problems: Record<string, string> }>(
    "/api/v1/offers",
    {},
    { everyS: LOOK_AGAIN_S },
  );
  const wanted = (query.get("find") ?? "").toLowerCase();
  const all = found.value?.items ?? [];
  const items = all.filter((offer) => text(offer).includes(wanted));
  return (
    <Card
      title="Offers, the best first"
      action={
        <input
          type="search"
          aria-label="Find an offer"
          placeholder="GPU, provider, region"
          value={query.get("find") ?? ""}
          onInput={(event) => setQuery({ find: event.currentTarget.value })}
        />
      }
    >
      <Found of={found} />
      {Object.entries(found.value?.problems ?? {}).map(([name, problem]) => (
        <p key={name} class="warning">
          {name} {problem}
        </p>
      ))}
      {found.value && all.length === 0 && (
        <Empty>
          Nothing is offered. The settings of the server name providers such as Slurm, Kubernetes
          and clouds.
        </Empty>
      )}
      {all.length > 0 && items.length === 0 && <Empty>No offer is like that.</Empty>}
      {items.length > 0 && <OfferTable items={items} />}
    </Card>
  );
}

function text({ id, provider, gpu, region, spot }: Offer): string {
  return `${id} ${provider} ${gpu} ${region} ${spot ? "spot" : ""}`.toLowerCase();
}

function OfferTable({ items }: { items: readonly Offer[] }) {
  return (
    <div class="scrolls" tabIndex={0} role="group" aria-label="Offers">
      <table>
        <thead>
          <tr>
            <th class="named">Offer</th>
            <th>GPUs</th>
            <th class="number">CPUs</th>
            <th class="number">Memory</th>
            <th class="number">An hour</th>
            <th class="number">Waits</th>
            <th class="number">Failed</th>
            <th class="number">Taken back</th>
            <th class="number">Trust</th>
          </tr>
        </thead>
        <tbody>
          {items.map((offer) => (
            <tr key={offer.id}>
              <td>
                <span class="row">
                  {offer.id}
                  {offer.spot && <Badge>spot</Badge>}
                </span>
                <span class="quiet small block">
                  {[offer.nodes > 1 ? `${offer.nodes} machines` : "", offer.region]
                    .filter(Boolean)
                    .join(", ")}
                </span>
                {offer.price_source && (
                  <span class="quiet small block">Price: {offer.price_source}</span>
                )}
                {offer.problem && <span class="small block problem">{offer.problem}</span>}
              </td>
              <td>{gpusOf(offer)}</td>
              <td class="number">{format.figure(offer.cpus)}</td>
              <td class="number">{format.figure(offer.memory_gb)} GB</td>
              <td class="number">{priceOf(offer)}</td>
              <td class="number">{format.duration(offer.wait_s)}</td>
              <td class="number">{share(offer.failed)}</td>
              <td class="number">{share(offer.interrupted)}</td>
              <td class="number">{offer.trust === null ? "–" : format.figure(offer.trust)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function gpusOf({ gpus, gpu, gpu_memory_gb: memoryGb }: Offer): string {
  if (gpus === 0) return "none";
  const memory = memoryGb > 0 ? `, ${format.figure(memoryGb)} GB` : "";
  return `${gpus} × ${gpu || "GPU"}${memory}`;
}

function priceOf({ price_per_hour: price, currency, billed }: Offer): string {
  if (price === null) return billed ? "unknown" : "free";
  return format.money(price, currency);
}
