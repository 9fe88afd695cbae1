// Jobs that are submitted again and again, at the times of a cron expression.

import { useState } from "preact/hooks";

import { address, type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { mayChange, maySubmit } from "../state/rights";
import { go } from "../state/router";
import { session } from "../state/session";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { ActionButton, Badge, Empty, Found, Link, StateBadge } from "../ui/parts";

type Schedule = Schemas["Schedule"];
const isAboutSchedules = (event: ServerEvent) => event.kind.startsWith("schedule.");

export default function SchedulesScreen() {
  const found = useResource<{ items: Schedule[] }>(
    "/api/v1/schedules",
    {},
    // The state of a last job is no schedule's event.
    { when: isAboutSchedules, everyS: 10 },
  );
  const items = found.value?.items ?? [];
  return (
    <>
      <div class="head">
        <h1>Schedules</h1>
        <span class="spring" />
        {session.may("member") && (
          <Link to="/submit" class="button primary">
            Submit at times
          </Link>
        )}
      </div>
      <Found of={found} />
      {found.value && items.length === 0 && (
        <Empty>
          There is no schedule. A job with times, as in <code>0 3 * * *</code>, is submitted at each
          of them.
        </Empty>
      )}
      {items.length > 0 && <ScheduleTable schedules={items} onChange={found.reload} />}
    </>
  );
}

interface TableProps {
  schedules: readonly Schedule[];
  onChange: () => void;
}

function ScheduleTable({ schedules, onChange }: TableProps) {
  const now = useNow();
  const [changed, setChanged] = useState<Schedule | null>(null);
  const [removed, setRemoved] = useState<Schedule | null>(null);
  return (
    <div class="card scrolls" tabIndex={0} role="region" aria-label="Schedules">
      <table class="middle">
        <thead>
          <tr>
            <th class="named">Schedule</th>
            <th>Times</th>
            <th>Next</th>
            <th>Last job</th>
            <th>Change</th>
          </tr>
        </thead>
        <tbody>
          {schedules.map((one) => (
            <tr key={one.id}>
              <td>
                {one.name}
                {one.problem && <span class="small block problem">{one.problem}</span>}
                {one.warnings?.map((warning) => (
                  <span key={warning} class="quiet small block">
                    {warning}
                  </span>
                ))}
              </td>
              <td>
                <code>{one.cron}</code> <span class="quiet small">{one.timezone}</span>
              </td>
              <td>
                {one.state === "paused" ? <Badge tone="warn">paused</Badge> : nextOf(one, now)}
              </td>
              <td>
                {one.last_job_id ? (
                  <span class="row wrap">
                    <Link to={`/jobs/${one.last_job_id}`}>{format.ago(one.last_at, now)}</Link>
                    {one.last_job_state && <StateBadge state={one.last_job_state} />}
                    <Link to={address("/jobs", { label: `schedule=${one.id}` })} class="small">
                      All of them<span class="hidden-text"> of {one.name}</span>
                    </Link>
                  </span>
                ) : (
                  <span class="quiet">none yet</span>
                )}
              </td>
              <td>
                <Actions
                  schedule={one}
                  onChange={onChange}
                  onEdit={() => setChanged(one)}
                  onRemove={() => setRemoved(one)}
                />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {changed && (
        <ChangeTimes schedule={changed} onClose={() => setChanged(null)} onDone={onChange} />
      )}
      {removed && <Remove schedule={removed} onClose={() => setRemoved(null)} onDone={onChange} />}
    </div>
  );
}

function nextOf({ next_at: at }: Schedule, now: number) {
  if (at === null || at === undefined) return <span class="quiet">never</span>;
  return <span title={format.time(at)}>in {format.duration(at - now)}</span>;
}

function pathOf({ id }: Schedule): string {
  return `/api/v1/schedules/${id}`;
}

/** Of which project its jobs are, and whose. */
function ownedOf({ job }: Schedule) {
  return {
    project: (job["project"] as string | undefined) ?? null,
    user: (job["user"] as string | undefined) ?? null,
  };
}

interface ActionsProps {
  schedule: Schedule;
  onChange: () => void;
  onEdit: () => void;
  onRemove: () => void;
}

function Actions({ schedule, onChange, onEdit, onRemove }: ActionsProps) {
  const [error, setError] = useState<Error | null>(null);
  const owned = ownedOf(schedule);
  if (!mayChange(owned)) return <span class="quiet">–</span>;
  const isPaused = schedule.state === "paused";
  const name = <span class="hidden-text"> {schedule.name}</span>;
  async function pause(): Promise<void> {
    await send("PATCH", pathOf(schedule), { state: isPaused ? "active" : "paused" });
    onChange();
  }
  async function run(): Promise<void> {
    const job = await send<Schemas["Job"]>("POST", `${pathOf(schedule)}/run`);
    go(`/jobs/${job.id}`);
  }
  return (
    <>
      <span class="row wrap">
        {maySubmit(owned.project) && (
          <ActionButton act={run} onError={setError}>
            Run now{name}
          </ActionButton>
        )}
        <ActionButton act={pause} onError={setError}>
          {isPaused ? "Go on" : "Pause"}
          {name}
        </ActionButton>
        <button type="button" class="button" onClick={onEdit}>
          Change the times{name}
        </button>
        <button type="button" class="button danger" onClick={onRemove}>
          Delete{name}
        </button>
      </span>
      <Found of={{ error }} />
    </>
  );
}

interface DialogProps {
  schedule: Schedule;
  onClose: () => void;
  onDone: () => void;
}

function ChangeTimes({ schedule, onClose, onDone }: DialogProps) {
  const [cron, setCron] = useState(schedule.cron);
  const [timezone, setTimezone] = useState(schedule.timezone);
  async function change(): Promise<void> {
    await send("PATCH", pathOf(schedule), { cron: cron.trim(), timezone: timezone.trim() });
    onDone();
  }
  return (
    <FormDialog title={`Times of ${schedule.name}`} verb="Change" act={change} onClose={onClose}>
      <p class="quiet">Minute, hour, day of the month, month, day of the week; or @daily.</p>
      <Field label="Times" required value={cron} onInput={setCron} />
      <Field label="Time zone" required value={timezone} onInput={setTimezone} />
    </FormDialog>
  );
}

function Remove({ schedule, onClose, onDone }: DialogProps) {
  async function remove(): Promise<void> {
    await send("DELETE", pathOf(schedule));
    onDone();
  }
  return (
    <FormDialog
      title={`Delete the schedule ${schedule.name}?`}
      verb="Delete it"
      kind="danger"
      act={remove}
      onClose={onClose}
    >
      <p>Its jobs go on. Nothing brings the schedule back.</p>
    </FormDialog>
  );
}
