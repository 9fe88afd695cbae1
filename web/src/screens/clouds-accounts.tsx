// The accounts at clouds: which permissions they lack, and the list prices that are known.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import { ActionButton, Badge, Dialog, Empty, ErrorNote, Found } from "../ui/parts";

type Check = Schemas["AccountCheck"];
type Price = Schemas["CataloguePrice"];

/** See `GET /api/v1/providers`. */
interface Provider {
  name: string;
  status: string;
  message?: string | null;
  rents: boolean;
}

const LOOK_AGAIN_S = 30;

/** Nothing, where no provider rents machines. */
export function Accounts() {
  const found = useResource<{ items: Provider[] }>(
    "/api/v1/providers",
    {},
    { everyS: LOOK_AGAIN_S },
  );
  const clouds = (found.value?.items ?? []).filter(({ rents }) => rents);
  return (
    <>
      <Found of={found} />
      {clouds.length > 0 && <h2>Clouds</h2>}
      <div class="columns few">
        {clouds.map((cloud) => (
          <Account key={cloud.name} cloud={cloud} />
        ))}
      </div>
    </>
  );
}

function Account({ cloud }: { cloud: Provider }) {
  const [check, setCheck] = useState<Check | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [hasPrices, setPrices] = useState(false);
  const path = `/api/v1/providers/${encodeURIComponent(cloud.name)}`;
  return (
    <article class="card" aria-label={cloud.name}>
      <div class="row wide">
        <h3 class="cut">{cloud.name}</h3>
        <Badge tone={cloud.status === "healthy" ? "good" : "warn"}>{cloud.status}</Badge>
      </div>
      {cloud.message && <p class="quiet">{cloud.message}</p>}
      {check && <Rights check={check} />}
      <ErrorNote error={error} />
      <div class="row">
        <button type="button" class="button" onClick={() => setPrices(true)}>
          Prices<span class="hidden-text"> of {cloud.name}</span>
        </button>
        {session.may("maintainer") && (
          <ActionButton
            act={async () => setCheck(await send<Check>("POST", `${path}/check`))}
            onError={setError}
          >
            Check its permissions
          </ActionButton>
        )}
      </div>
      {hasPrices && <Prices cloud={cloud.name} path={path} onClose={() => setPrices(false)} />}
    </article>
  );
}

function Rights({ check }: { check: Check }) {
  return (
    <div role="status">
      <p>{check.message}</p>
      {check.missing.map(({ action, needed_for: purpose }) => (
        <p key={action} class="warning">
          <code>{action}</code>: needed for {purpose}
        </p>
      ))}
    </div>
  );
}

interface PricesProps {
  cloud: string;
  path: string;
  onClose: () => void;
}

function Prices({ cloud, path, onClose }: PricesProps) {
  const found = useResource<{ items: Price[] }>(`${path}/prices`);
  const [error, setError] = useState<Error | null>(null);
  async function refresh(): Promise<void> {
    const read = await send<{ items: Price[] }>("POST", `${path}/prices/refresh`);
    found.patch(() => read);
  }
  const prices = found.value?.items ?? [];
  return (
    <Dialog title={`List prices of ${cloud}`} onClose={onClose}>
      <p class="quiet">They count where the cloud tells no price of its own.</p>
      <ErrorNote error={error ?? found.error} />
      {found.value && prices.length === 0 && <Empty>No price of its regions is known.</Empty>}
      {prices.length > 0 && <PriceTable cloud={cloud} prices={prices} />}
      <div class="row">
        {found.value && session.may("maintainer") && (
          <ActionButton act={refresh} onError={setError}>
            Read them anew
          </ActionButton>
        )}
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function PriceTable({ cloud, prices }: { cloud: string; prices: readonly Price[] }) {
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label={`Prices of ${cloud}`}>
      <table>
        <thead>
          <tr>
            <th class="named">Type</th>
            <th>Region</th>
            <th class="number">An hour</th>
            <th>Source</th>
            <th>Date</th>
          </tr>
        </thead>
        <tbody>
          {prices.map((price) => (
            <tr key={`${price.region} ${price.type}`}>
              <td>{price.type}</td>
              <td>{price.region}</td>
              <td class="number">
                {price.price_per_hour} {price.currency}
              </td>
              <td>{price.source}</td>
              <td>{price.date}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
