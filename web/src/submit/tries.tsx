// How much a new job may take, how often it is tried, and the variables that it gets.

import { useId } from "preact/hooks";

import { FaultNote, Field, TextField } from "../ui/fields";
import { Tick } from "../ui/forms";
import { bound, type Editing } from "./editing";
import { CAUSES } from "./parts";

/** The fields that these are of. */
export const TRIES = [
  ...(["cpus", "ramGb", "timeout", "logLimit", "retries", "retryOn"] as const),
  ...(["preemptible", "seed", "environment"] as const),
];

export function TryFields(editing: Editing) {
  const { form, onForm } = editing;
  const figure = { type: "number", min: 0 };
  return (
    <div class="stack">
      <div class="fields pairs">
        <Field label="CPU cores" {...figure} {...bound(editing, "cpus")} />
        <Field label="Memory, GB" {...figure} {...bound(editing, "ramGb")} />
        <Field label="End it after" hint="2h" {...bound(editing, "timeout")} />
        <Field label="Of its output, keep at most" hint="200MB" {...bound(editing, "logLimit")} />
        <Field label="Try again, so often" {...figure} hint="0" {...bound(editing, "retries")} />
        <Field label="Seed of its random numbers" {...figure} {...bound(editing, "seed")} />
      </div>
      <CauseFields {...editing} />
      <Tick
        label="It may have to make room for a more urgent job"
        checked={form.preemptible}
        onChange={(preemptible) => onForm({ ...form, preemptible })}
      />
      <TextField
        label="Environment variables, one a line"
        hint="OMP_NUM_THREADS=1"
        rows={2}
        mono
        {...bound(editing, "environment")}
      />
    </div>
  );
}

/** After which ends it is tried again; they count only if it is. */
function CauseFields({ form, faults, onForm }: Editing) {
  const id = useId();
  const { retryOn } = form;
  const fault = faults.retryOn ?? "";
  if (!form.retries.trim() && retryOn.length === 0 && !fault) return null;

  function set(cause: string, isWanted: boolean): void {
    const others = retryOn.filter((one) => one !== cause);
    onForm({ ...form, retryOn: isWanted ? [...others, cause] : others });
  }

  return (
    <div
      class="field"
      role="group"
      aria-label="Try again only if"
      aria-describedby={fault ? id : undefined}
    >
      <span>Try again only if (none: in each case)</span>
      <div class="row wrap">
        {Object.entries(CAUSES).map(([cause, name]) => (
          <Tick
            key={cause}
            label={name}
            checked={retryOn.includes(cause)}
            onChange={(isWanted) => set(cause, isWanted)}
          />
        ))}
      </div>
      <FaultNote id={id} fault={fault} />
    </div>
  );
}
