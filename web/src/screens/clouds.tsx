// What is kept ready at providers, what is rented now, and what the accounts at clouds may do.

import * as format from "../format";
import type { ServerEvent } from "../api/events";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { Badge, Card, Empty, Found, Link, type Tone } from "../ui/parts";
import { Accounts } from "./clouds-accounts";
import { Pools } from "./clouds-pools";

/** See `GET /api/v1/machines`. */
interface RentedMachine {
  provider: string;
  id: string;
  region: string;
  zone: string;
  type: string;
  spot: boolean;
  state: string;
  interrupted: boolean;
  job_id: string | null;
  pool: string | null;
  node: string | null;
  launched_at: number | null;
  price_per_hour: string | null;
  cost: string | null;
  currency: string;
}

interface Rented {
  items: RentedMachine[];
  problems: Record<string, string>;
  told_at: Record<string, number | null>;
}

// The server asks the clouds no more often, however many people look.
const LOOK_AGAIN_S = 10;
const SHORTEST_PAUSE_S = 5;
const TONES: Record<string, Tone> = { running: "good", pending: "busy", stopping: "warn" };
const changesMachines = ({ kind }: ServerEvent) => /^(attempt|node|pool)\./.test(kind);

export default function CloudsScreen() {
  return (
    <>
      <div class="head">
        <h1>Clouds and pools</h1>
        <span class="spring" />
        <Link to="/offers" class="button">
          Offers and their prices
        </Link>
      </div>
      <Pools />
      <Machines />
      <Accounts />
    </>
  );
}

function Machines() {
  const found = useResource<Rented>(
    "/api/v1/machines",
    {},
    { when: changesMachines, everyS: LOOK_AGAIN_S, pauseS: SHORTEST_PAUSE_S },
  );
  const machines = found.value?.items ?? [];
  const problems = Object.entries(found.value?.problems ?? {});
  return (
    <Card title="Rented machines" action={<Ages toldAt={found.value?.told_at ?? {}} />}>
      <Found of={found} />
      {problems.map(([provider, problem]) => (
        <p key={provider} class="warning">
          {provider} cannot be asked: {problem}
        </p>
      ))}
      {found.value && machines.length === 0 && (
        <Empty>
          {problems.length ? "Of the clouds that answer, nothing" : "Nothing"} is rented.
        </Empty>
      )}
      {machines.length > 0 && <MachineTable machines={machines} />}
    </Card>
  );
}

/** How old the answer of each cloud is. */
function Ages({ toldAt }: { toldAt: Rented["told_at"] }) {
  const now = useNow();
  const ages = Object.entries(toldAt).map(([provider, at]) =>
    at === null ? `${provider}: no answer yet` : `${provider}: ${format.ago(at, now)}`,
  );
  return <span class="quiet small">{ages.join(", ")}</span>;
}

function MachineTable({ machines }: { machines: readonly RentedMachine[] }) {
  const now = useNow();
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label="Rented machines">
      <table>
        <thead>
          <tr>
            <th class="named">Machine</th>
            <th>Type</th>
            <th>State</th>
            <th>For</th>
            <th class="number">Since</th>
            <th class="number">An hour</th>
            <th class="number">Cost so far</th>
          </tr>
        </thead>
        <tbody>
          {machines.map((machine) => (
            <tr key={machine.id}>
              <td>
                <span class="breaks">{machine.id}</span>
                <span class="quiet small block">
                  {machine.provider}, {machine.zone || machine.region}
                  {machine.node && `, node ${machine.node}`}
                </span>
              </td>
              <td>
                <span class="row">
                  {machine.type}
                  <Badge>{machine.spot ? "spot" : "on demand"}</Badge>
                </span>
              </td>
              <td>
                <Badge tone={machine.interrupted ? "warn" : (TONES[machine.state] ?? "plain")}>
                  {machine.interrupted ? "is taken back" : machine.state}
                </Badge>
              </td>
              <td>
                <Owner machine={machine} />
              </td>
              <td class="number quiet">{format.ago(machine.launched_at, now)}</td>
              <td class="number">{priceOf(machine.price_per_hour, machine.currency)}</td>
              <td class="number">{priceOf(machine.cost, machine.currency)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Owner({ machine }: { machine: RentedMachine }) {
  const { job_id: job, pool } = machine;
  if (job) return <Link to={`/jobs/${job}`}>{format.shortId(job)}</Link>;
  return <>{pool ? `pool ${pool}` : "nobody: it ends soon"}</>;
}

function priceOf(amount: string | null, currency: string): string {
  return amount === null ? "unknown" : format.money(amount, currency);
}
