// Budgets: what may be spent, by whom, and how far that is.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import { Choice, Field } from "../ui/fields";
import { FormDialog, Tick } from "../ui/forms";
import { Card, Found, Meter } from "../ui/parts";

type Budget = Schemas["Budget"];
const PERIODS = [
  ["day", "each day"],
  ["month", "each month"],
  ["total", "once"],
] as const;

export function Budgets() {
  const budgets = useResource<{ items: Budget[] }>("/api/v1/budgets", {}, { everyS: 30 });
  const [isSetting, setSetting] = useState(false);
  const [changed, setChanged] = useState<Budget | null>(null);
  const [removed, setRemoved] = useState<Budget | null>(null);
  const may = session.may("administrator");
  return (
    <>
      <Found of={budgets} />
      <div class="tiles">
        {budgets.value?.items.map((budget) => (
          <BudgetCard
            key={budget.name}
            budget={budget}
            onChange={() => setChanged(budget)}
            onRemove={() => setRemoved(budget)}
          />
        ))}
      </div>
      {may && (
        <div>
          <button type="button" class="button" onClick={() => setSetting(true)}>
            Set a budget
          </button>
        </div>
      )}
      {(isSetting || changed) && (
        <SetBudget
          budget={changed}
          onClose={() => (setSetting(false), setChanged(null))}
          onDone={budgets.reload}
        />
      )}
      {removed && (
        <RemoveBudget budget={removed} onClose={() => setRemoved(null)} onDone={budgets.reload} />
      )}
    </>
  );
}

interface CardProps {
  budget: Budget;
  onChange: () => void;
  onRemove: () => void;
}

function BudgetCard({ budget, onChange, onRemove }: CardProps) {
  const share = Number(budget.spent) / Number(budget.amount);
  const whose = budget.user ?? budget.project ?? "everybody";
  const name = <span class="hidden-text"> {budget.name}</span>;
  return (
    <Card title={budget.name}>
      <Meter share={share} label={`Spent of the budget ${budget.name}`} />
      <div class="row wide">
        <span>{format.money(budget.spent, budget.currency)}</span>
        <span class="quiet">of {format.money(budget.amount, budget.currency)}</span>
      </div>
      <p class="quiet small">
        {whose}, {periodOf(budget)}
        {budget.hard ? ", ends what runs" : ""}
      </p>
      <p class="quiet small">
        {format.money(budget.reserved, budget.currency)} more kept for jobs that wait or run; what
        runs now brings it to {format.money(budget.forecast, budget.currency)} at most
        {budget.waiting > 0 && `; it keeps ${format.count(budget.waiting)} jobs waiting`}
      </p>
      {session.may("administrator") && (
        <div class="row">
          <button type="button" class="button" onClick={onChange}>
            Change{name}
          </button>
          <button type="button" class="button danger" onClick={onRemove}>
            Remove{name}
          </button>
        </div>
      )}
    </Card>
  );
}

function periodOf({ period }: Budget): string {
  return PERIODS.find(([name]) => name === period)?.[1] ?? period;
}

interface DialogProps {
  onClose: () => void;
  onDone: () => void;
}

function SetBudget({ budget, onClose, onDone }: DialogProps & { budget: Budget | null }) {
  const [name, setName] = useState(budget?.name ?? "");
  const [project, setProject] = useState(budget?.project ?? "");
  const [user, setUser] = useState(budget?.user ?? "");
  const [amount, setAmount] = useState(budget ? String(Number(budget.amount)) : "");
  const [period, setPeriod] = useState<string>(budget?.period ?? "month");
  const [isHard, setHard] = useState(budget?.hard ?? false);
  async function set(): Promise<void> {
    await send("PUT", `/api/v1/budgets/${encodeURIComponent(name.trim())}`, {
      ...(project.trim() && { project: project.trim() }),
      ...(user.trim() && { user: user.trim() }),
      ...(budget && { currency: budget.currency, timezone: budget.timezone }),
      amount,
      period,
      hard: isHard,
    });
    onDone();
  }
  return (
    <FormDialog
      title={budget ? `Change the budget ${budget.name}` : "Set a budget"}
      verb="Set"
      act={set}
      onClose={onClose}
    >
      {budget === null && <Field label="Name" required value={name} onInput={setName} />}
      <Field label="Amount" type="number" min={0} required value={amount} onInput={setAmount} />
      <Choice label="It counts" value={period} options={PERIODS} onChoose={setPeriod} />
      <Field label="Of the project (empty: of all)" value={project} onInput={setProject} />
      <Field label="Or of the user" value={user} onInput={setUser} />
      <Tick
        label="When it is spent, end what runs, and not only keep new jobs waiting"
        checked={isHard}
        onChange={setHard}
      />
    </FormDialog>
  );
}

function RemoveBudget({ budget, onClose, onDone }: DialogProps & { budget: Budget }) {
  async function remove(): Promise<void> {
    await send("DELETE", `/api/v1/budgets/${encodeURIComponent(budget.name)}`);
    onDone();
  }
  return (
    <FormDialog
      title={`Remove the budget ${budget.name}?`}
      verb="Remove it"
      kind="danger"
      act={remove}
      onClose={onClose}
    >
      <p>From then on, it keeps no job waiting.</p>
    </FormDialog>
  );
}
