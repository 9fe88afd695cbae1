// Reservations as a calendar: which GPUs who has, and when.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import { ActionButton, Badge, Card, Dialog, Empty, ErrorNote, Found, type Tone } from "../ui/parts";
import { Calendar, monthName, otherMonth } from "../ui/calendar";
import { Choice, Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { useProjects } from "./people-projects";
import { asChoices, useUsers } from "./people-users";

type Reservation = Schemas["Reservation"];
const TONES: Record<string, Tone> = { current: "busy", coming: "good", over: "plain" };
const isAboutReservations = (event: ServerEvent) => event.kind.startsWith("reservation.");

export function ReservationsTab() {
  const found = useResource<{ items: Reservation[] }>(
    "/api/v1/reservations",
    { ended: true },
    { when: isAboutReservations, everyS: 60 },
  );
  const [month, setMonth] = useState(otherMonth(new Date(), 0));
  const [isAdding, setAdding] = useState(false);
  const [chosen, setChosen] = useState<Reservation | null>(null);
  const all = found.value?.items ?? [];
  const spans = all.map((one) => ({ ...one, beginsAt: one.begins_at, endsAt: one.ends_at }));
  return (
    <>
      <div class="head">
        <h2>{monthName(month)}</h2>
        <span class="row wrap">
          <button type="button" class="button" onClick={() => setMonth(otherMonth(month, -1))}>
            Month before
          </button>
          <button type="button" class="button" onClick={() => setMonth(otherMonth(new Date(), 0))}>
            Today
          </button>
          <button type="button" class="button" onClick={() => setMonth(otherMonth(month, 1))}>
            Month after
          </button>
        </span>
        <span class="spring" />
        {session.may("maintainer") && (
          <button type="button" class="button primary" onClick={() => setAdding(true)}>
            Reserve GPUs
          </button>
        )}
      </div>
      <Found of={found} />
      <div class="card scrolls" role="region" aria-label="Calendar" tabIndex={0}>
        <Calendar
          month={month}
          spans={spans}
          draw={(one) => (
            <button
              key={one.id}
              type="button"
              class={`badge span ${TONES[one.state]}`}
              onClick={() => setChosen(one)}
            >
              {holderOf(one)}: {whatOf(one)}
            </button>
          )}
        />
      </div>
      <Coming reservations={all} onChoose={setChosen} />
      {isAdding && <Reserve onClose={() => setAdding(false)} onDone={found.reload} />}
      {chosen && (
        <About
          reservation={chosen}
          onClose={() => setChosen(null)}
          onDone={() => (setChosen(null), found.reload())}
        />
      )}
    </>
  );
}

function holderOf(one: Reservation): string {
  return one.project ?? one.user ?? "others";
}

function whatOf(one: Reservation): string {
  const gpus = `${one.gpus} ${one.gpu_class ?? "GPU"}${one.gpus === 1 ? "" : "s"}`;
  if (one.gpus === null || one.gpus === undefined) return `all of ${one.node}`;
  return one.node ? `${gpus} of ${one.node}` : gpus;
}

/** The same as a list: what holds now and what is to come. */
function Coming(props: { reservations: Reservation[]; onChoose: (one: Reservation) => void }) {
  const live = props.reservations.filter((one) => one.state !== "over");
  if (live.length === 0) return <Empty>Nothing is reserved from now on.</Empty>;
  return (
    <Card title="Now and to come">
      <div class="scrolls" role="region" aria-label="Now and to come" tabIndex={0}>
        <table class="middle">
          <thead>
            <tr>
              <th>For</th>
              <th>What</th>
              <th>From</th>
              <th>To</th>
              <th>State</th>
            </tr>
          </thead>
          <tbody>
            {live.map((one) => (
              <tr key={one.id}>
                <td>
                  <button type="button" class="button" onClick={() => props.onChoose(one)}>
                    {holderOf(one)}
                  </button>
                </td>
                <td class="whole">{whatOf(one)}</td>
                <td class="whole">{format.time(one.begins_at)}</td>
                <td class="whole">{format.time(one.ends_at)}</td>
                <td>
                  <Badge tone={one.problem ? "bad" : (TONES[one.state] ?? "plain")}>
                    {one.problem ? "lacks GPUs" : one.state}
                  </Badge>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

interface AboutProps {
  reservation: Reservation;
  onClose: () => void;
  onDone: () => void;
}

function About({ reservation, onClose, onDone }: AboutProps) {
  const [error, setError] = useState<Error | null>(null);
  const { state, shares, problem } = reservation;
  async function remove(): Promise<void> {
    await send("DELETE", `/api/v1/reservations/${reservation.id}`);
    onDone();
  }
  return (
    <Dialog title={`Reserved for ${holderOf(reservation)}`} onClose={onClose}>
      <dl class="facts">
        <dt>What</dt>
        <dd>{whatOf(reservation)}</dd>
        <dt>From</dt>
        <dd>{format.time(reservation.begins_at)}</dd>
        <dt>To</dt>
        <dd>{format.time(reservation.ends_at)}</dd>
        <dt>State</dt>
        <dd>{state}</dd>
        <dt>GPUs</dt>
        <dd>
          {shares?.map((share) => `${share.gpu_uuids.length} of ${share.node}`).join(", ") || "–"}
        </dd>
        <dt>Made by</dt>
        <dd>{reservation.created_by ?? "owner"}</dd>
      </dl>
      {problem && <p class="error">{problem}</p>}
      <ErrorNote error={error} />
      <div class="row">
        {state !== "over" && session.may("maintainer") && (
          <ActionButton act={remove} kind="danger" onError={setError}>
            Remove it
          </ActionButton>
        )}
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Reserve({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const users = useUsers();
  const projects = useProjects();
  const [holder, setHolder] = useState("");
  const [gpus, setGpus] = useState("1");
  const [gpuClass, setGpuClass] = useState("");
  const [node, setNode] = useState("");
  const [begins, setBegins] = useState("");
  const [ends, setEnds] = useState("");
  const holders = [
    ...(projects.value?.items.map(({ name }) => `project ${name}`) ?? []),
    ...(users.value?.items.map(({ name }) => `user ${name}`) ?? []),
    "user owner",
  ];
  async function reserve(): Promise<void> {
    const [kind, name] = [holder.split(" ", 1)[0]!, holder.slice(holder.indexOf(" ") + 1)];
    await send("POST", "/api/v1/reservations", {
      [kind]: name,
      begins: begins ? begins.replace("T", " ") : "now",
      ends: ends.replace("T", " "),
      timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
      ...(gpus ? { gpus: Number(gpus) } : {}),
      ...(gpuClass ? { gpu_class: gpuClass } : {}),
      ...(node ? { node } : {}),
    });
    onDone();
  }
  return (
    <FormDialog title="Reserve GPUs" verb="Reserve" act={reserve} onClose={onClose}>
      <Choice
        label="For"
        required
        value={holder}
        options={[["", "choose a project or a user"], ...asChoices(holders)]}
        onChoose={setHolder}
      />
      <Field
        label="GPUs (empty: all of the node)"
        type="number"
        min={1}
        value={gpus}
        onInput={setGpus}
      />
      <Field label="Class, such as a100 (empty: any)" value={gpuClass} onInput={setGpuClass} />
      <Field label="Node (empty: any)" value={node} onInput={setNode} />
      <Field label="From (empty: now)" type="datetime-local" value={begins} onInput={setBegins} />
      <Field label="To" type="datetime-local" value={ends} onInput={setEnds} required />
    </FormDialog>
  );
}
