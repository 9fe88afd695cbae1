// What clouds bill beside what was counted: the last comparison of each, and a new one.

import { useState } from "preact/hooks";

import { address, type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { Badge, Empty, Found, Link } from "../ui/parts";
import "../ui/panels.css";

type Stored = Schemas["StoredBill"];
type Comparison = Schemas["BillComparison"];
type Machine = Schemas["BilledMachine"];
const isAboutBills = (event: ServerEvent) => event.kind.startsWith("bill.");

/** For administrators: amounts are also those of private projects. */
export function BillsTab() {
  const found = useResource<{ items: Stored[] }>("/api/v1/bills", {}, { when: isAboutBills });
  const bills = found.value?.items ?? [];
  return (
    <>
      <p class="quiet">
        What was compared last. Looking at it asks no cloud, and a comparison changes no cost.
      </p>
      <Found of={found} />
      {found.value && bills.length === 0 && <Empty>No provider here rents machines.</Empty>}
      {bills.map((bill) => (
        <Bill key={bill.provider} bill={bill} onCompared={found.reload} />
      ))}
    </>
  );
}

function Bill({ bill, onCompared }: { bill: Stored; onCompared: () => void }) {
  const [isAsking, setAsking] = useState(false);
  const { comparison } = bill;
  return (
    <article class="card" aria-label={`Bill of ${bill.provider}`}>
      <div class="row wide wrap">
        <div class="row">
          <h2 class="cut">{bill.provider}</h2>
          {comparison && (
            <Badge tone={comparison.differs ? "warn" : "good"}>
              {comparison.differs ? "differs" : "agrees"}
            </Badge>
          )}
        </div>
        <button type="button" class="button" onClick={() => setAsking(true)}>
          Compare now<span class="hidden-text"> {bill.provider}</span>
        </button>
      </div>
      {comparison ? (
        <Compared bill={bill} found={comparison} />
      ) : (
        <Empty>
          It was never compared.
          {bill.daily
            ? " The server does it once a day."
            : " With compare_bills = true, the server does it once a day."}
        </Empty>
      )}
      {isAsking && (
        <Question
          provider={bill.provider}
          onCompared={onCompared}
          onClose={() => setAsking(false)}
        />
      )}
    </article>
  );
}

/** The cloud is asked only after somebody has read that this may cost something. */
function Question(props: { provider: string; onCompared: () => void; onClose: () => void }) {
  const [day, setDay] = useState("");
  async function ask(): Promise<void> {
    const path = `/api/v1/providers/${encodeURIComponent(props.provider)}/bill`;
    await send("POST", address(path, { day: day || undefined }));
    props.onCompared();
  }
  return (
    <FormDialog
      title={`Ask ${props.provider} for a bill?`}
      verb="Ask the cloud"
      act={ask}
      onClose={props.onClose}
    >
      <p>The question may cost something: AWS charges a cent for each.</p>
      <Field label="Day of the bill" type="date" value={day} onInput={setDay} />
      <p class="quiet small">
        Without a day, it is the newest that should be complete, two days ago.
      </p>
    </FormDialog>
  );
}

function Compared({ bill, found }: { bill: Stored; found: Comparison }) {
  const left = bill.different - found.items.length;
  return (
    <>
      <p>
        {found.day} ({found.timezone}), compared {format.time(bill.compared_at)}:{" "}
        {machines(bill.machines)}, of which {format.count(bill.different)} differ.
      </p>
      {found.sums.map((sum) => (
        <p key={sum.currency}>
          Billed {money(sum.billed, sum.currency)}, counted {money(sum.counted, sum.currency)},
          difference {money(sum.difference, sum.currency)}.
        </p>
      ))}
      {found.estimated && (
        <p class="quiet">The cloud calls this bill an estimate, so it may still change.</p>
      )}
      {found.differs && (
        <p class="warning">
          Look into it: the sums are more than {found.tolerance_percent} % apart, a machine is not
          known here, or it is billed in another currency.
        </p>
      )}
      {found.items.length > 0 && <Machines provider={bill.provider} items={found.items} />}
      {left > 0 && <p class="quiet">{machines(left)} with smaller differences are not shown.</p>}
    </>
  );
}

function Machines({ provider, items }: { provider: string; items: Machine[] }) {
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label={`Differences of ${provider}`}>
      <table>
        <thead>
          <tr>
            <th class="named">Machine</th>
            <th>For</th>
            <th class="number">Counted</th>
            <th class="number">Billed</th>
            <th class="number">Difference</th>
            <th>Besides the machine</th>
            <th class="words">Why</th>
          </tr>
        </thead>
        <tbody>
          {items.map((one) => (
            <tr key={`${one.machine} ${one.owner} ${one.currency}`}>
              <td class="breaks">{one.machine}</td>
              <td class="breaks">
                {one.job_id ? (
                  <Link to={`/jobs/${one.job_id}`}>{format.shortId(one.job_id)}</Link>
                ) : (
                  one.owner || "–"
                )}
              </td>
              <td class="number">{money(one.counted, one.currency)}</td>
              <td class="number">{money(one.billed, one.currency)}</td>
              <td class="number">{money(one.difference, one.currency)}</td>
              <td>{besides(one)}</td>
              <td class="words">{one.why}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function besides({ parts, currency }: Machine): string {
  const others = Object.entries(parts).filter(([name]) => name !== "machine");
  return others.map(([name, spent]) => `${name} ${money(spent, currency)}`).join(", ") || "–";
}

function machines(count: number): string {
  return count === 1 ? "1 machine" : `${format.count(count)} machines`;
}

/** A machine that is billed in another currency than it was counted in names both. */
function money(amount: string | null | undefined, currency: string): string {
  if (/^[A-Z]{3}$/.test(currency)) return format.money(amount, currency);
  return amount === null || amount === undefined ? "–" : `${amount} ${currency}`.trim();
}
