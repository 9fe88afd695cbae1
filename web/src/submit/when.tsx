// When a new job starts, how often, and until when it should have ended.

import { useId } from "preact/hooks";

import type { Schemas } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Choice, Field } from "../ui/fields";
import { Tick } from "../ui/forms";
import { Lines } from "../ui/lines";
import { bound, type Editing } from "./editing";
import { type End, ENDS, NO_PARENT, type Parent } from "./lists";

type Listed = Schemas["Job"] | Schemas["Array"];
/** What happens at a time when the last job has not ended; skip is what happens anyway. */
const OVERLAPS: readonly (readonly [Schemas["Overlap"] | "", string])[] = [
  ["", "leave this time out"],
  ["queue", "wait for its end"],
  ["cancel-previous", "cancel it"],
];
const SUGGESTED = 50;

/** The fields that these are of. */
export const WHEN = [
  ...(["array", "after", "held", "deadline"] as const),
  ...(["times", "overlap", "startingDeadline"] as const),
];

export function WhenFields(editing: Editing) {
  const { form, onForm } = editing;
  const isScheduled = form.times.trim() !== "";
  return (
    <div class="stack">
      <div class="fields pairs">
        <Field label="Once for each index" hint="0-9 or 0-1999%20" {...bound(editing, "array")} />
        <Field
          label={isScheduled ? "To end so long after its time" : "To end by"}
          hint={isScheduled ? "8h" : "8h or 2026-12-01 18:00"}
          {...bound(editing, "deadline")}
        />
        <Field
          label="Again at these times, as in cron"
          hint="0 3 * * *"
          {...bound(editing, "times")}
        />
      </div>
      {form.array.trim() && (
        <p class="quiet small">
          Each task has its index in place of <code>{"{i}"}</code> in the command, the variables and
          the patterns, and in <code>$GPUYARD_ARRAY_INDEX</code>. <code>%20</code> lets 20 run at
          once.
        </p>
      )}
      {isScheduled && <ScheduleFields {...editing} />}
      <ParentFields {...editing} />
      <Tick
        label="Hold it until somebody releases it"
        checked={form.held}
        onChange={(held) => onForm({ ...form, held })}
      />
    </div>
  );
}

function ScheduleFields(editing: Editing) {
  const { onInput, ...overlap } = bound(editing, "overlap");
  return (
    <div class="fields pairs">
      <Choice
        label="If the last one has not ended"
        options={OVERLAPS}
        onChoose={onInput}
        {...overlap}
      />
      <Field
        label="Made up for, if missed, within"
        hint="1h"
        {...bound(editing, "startingDeadline")}
      />
    </div>
  );
}

function ParentFields({ form, faults, onForm }: Editing) {
  const suggestions = useId();
  const isAsked = form.after.length > 0;
  const known = useResource<{ items: Listed[] }>(isAsked ? "/api/v1/jobs" : null, {
    folded: true,
    limit: SUGGESTED,
  });
  return (
    <>
      <Lines<Parent>
        label="Jobs that must end first"
        verb="Wait for another job"
        lines={form.after}
        blank={NO_PARENT}
        nameOf={({ job }) => job}
        fault={faults.after ?? ""}
        draw={(parent, change) => (
          <>
            <Field
              label="Wait for the job"
              hint="its name or id"
              list={suggestions}
              value={parent.job}
              onInput={(job) => change({ ...parent, job })}
            />
            <Choice
              label="It starts when that"
              value={parent.end}
              options={Object.entries(ENDS)}
              onChoose={(end) => change({ ...parent, end: end as End })}
            />
          </>
        )}
        onLines={(after) => onForm({ ...form, after })}
      />
      <datalist id={suggestions}>
        {(known.value?.items ?? []).map(({ id, name, state }) => (
          // A name means the newest of one's own jobs, and this may be another one.
          <option key={id} value={format.shortId(id)}>
            {name}, {state.replaceAll("_", " ")}
          </option>
        ))}
      </datalist>
    </>
  );
}
