// How far the places where jobs run are trusted, and the checks that were made of them.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { type Job, labelOf, ranS, SELDOM } from "../groups/jobs";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import {
  ActionButton,
  Badge,
  Card,
  Empty,
  ErrorNote,
  Found,
  Link,
  Meter,
  StateBadge,
} from "../ui/parts";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { Verdicts } from "./verification-checks";
import "../ui/panels.css";

type Trust = Schemas["Trust"];
const HOUR_S = 3600;
const SHOWN = 200;
/** So the jobs of checks are called; see `verification/solver_jobs.py`. */
const CHECK = "verify ";
const isAboutTrust = (event: ServerEvent) => event.kind === "trust.changed";

export default function VerificationScreen() {
  const trust = useResource<{ items: Trust[] }>(
    "/api/v1/trust",
    {},
    { when: isAboutTrust, everyS: 60 },
  );
  const [quarantined, setQuarantined] = useState<string | null>(null);
  return (
    <>
      <div class="head">
        <h1>Verification</h1>
        <span class="spring" />
        {session.may("maintainer") && (
          <button type="button" class="button" onClick={() => setQuarantined("")}>
            Put a place into quarantine
          </button>
        )}
      </div>
      <Card title="Places">
        <Found of={trust} />
        {trust.value?.items.length === 0 && (
          <Empty>
            Nothing is recorded of any place: all are trusted. <code>gpuyard verify run</code>{" "}
            checks one.
          </Empty>
        )}
        {trust.value && trust.value.items.length > 0 && (
          <PlaceTable
            places={trust.value.items}
            onChange={trust.reload}
            onQuarantine={setQuarantined}
          />
        )}
      </Card>
      <Verdicts />
      <Checks />
      {quarantined !== null && (
        <Quarantine
          place={quarantined}
          known={trust.value?.items ?? []}
          onClose={() => setQuarantined(null)}
          onDone={trust.reload}
        />
      )}
    </>
  );
}

function pathOf(place: string): string {
  return `/api/v1/trust/${place.split("/").map(encodeURIComponent).join("/")}`;
}

interface TableProps {
  places: Trust[];
  onChange: () => void;
  onQuarantine: (place: string) => void;
}

function PlaceTable(props: TableProps) {
  const now = useNow();
  const may = session.may("maintainer");
  return (
    <div class="scrolls" role="region" aria-label="Places" tabIndex={0}>
      <table class="middle">
        <thead>
          <tr>
            <th>Place</th>
            <th>Trust</th>
            <th>Quarantine</th>
            <th>Why</th>
            <th class="number">Recorded</th>
            {may && <th>Change</th>}
          </tr>
        </thead>
        <tbody>
          {props.places.map((place) => (
            <PlaceLine key={place.place} place={place} now={now} {...props} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function PlaceLine({
  place: { place, score, quarantined_until: until, reason, updated_at: at },
  now,
  onChange,
  onQuarantine,
}: TableProps & { place: Trust; now: number }) {
  const [error, setError] = useState<Error | null>(null);
  const isQuarantined = until !== null && until !== undefined && until > now;
  async function end(): Promise<void> {
    await send("PUT", pathOf(place), { score, quarantined_until: null, reason });
    onChange();
  }
  async function forget(): Promise<void> {
    await send("DELETE", pathOf(place));
    onChange();
  }
  return (
    <tr>
      <td>{place}</td>
      <td class="bar">
        {score === null || score === undefined ? (
          <span class="quiet">not measured</span>
        ) : (
          <span class="stack tight">
            <span>{format.figure(score)}</span>
            <Meter share={score} label={`Trust in ${place}`} />
          </span>
        )}
      </td>
      <td>
        {isQuarantined ? (
          <Badge tone="bad">{format.duration(until - now)} more</Badge>
        ) : (
          <Badge tone="good">none</Badge>
        )}
      </td>
      <td class="words">{reason || "–"}</td>
      <td class="number quiet whole">{format.ago(at, now)}</td>
      {session.may("maintainer") && (
        <td>
          <span class="row">
            {isQuarantined ? (
              <ActionButton act={end} onError={setError}>
                End it
              </ActionButton>
            ) : (
              <button type="button" class="button" onClick={() => onQuarantine(place)}>
                Quarantine
              </button>
            )}
            <ActionButton act={forget} kind="danger" onError={setError}>
              Forget
            </ActionButton>
          </span>
          <ErrorNote error={error} />
        </td>
      )}
    </tr>
  );
}

interface QuarantineProps {
  place: string;
  known: Trust[];
  onClose: () => void;
  onDone: () => void;
}

function Quarantine({ place: given, known, onClose, onDone }: QuarantineProps) {
  const now = useNow();
  const [place, setPlace] = useState(given);
  const [hours, setHours] = useState("4");
  const [reason, setReason] = useState("");
  async function record(): Promise<void> {
    await send("PUT", pathOf(place), {
      score: known.find((one) => one.place === place)?.score ?? null,
      quarantined_until: now + Number(hours) * HOUR_S,
      reason,
    });
    onDone();
  }
  return (
    <FormDialog
      title="Put a place into quarantine"
      verb="Quarantine"
      kind="danger"
      act={record}
      onClose={onClose}
    >
      <p class="quiet">It gets no new jobs until then. What runs there, runs on.</p>
      <Field
        label="Place: a provider, node:NAME, or gpu:UUID"
        value={place}
        onInput={setPlace}
        required
      />
      <Field label="Hours" type="number" required value={hours} onInput={setHours} />
      <Field label="Why" value={reason} onInput={setReason} />
    </FormDialog>
  );
}

function Checks() {
  const now = useNow();
  const jobs = useResource<{ items: Job[] }>(
    "/api/v1/jobs",
    { name: `${CHECK}*`, limit: SHOWN },
    SELDOM,
  );
  const checks = jobs.value?.items.filter((job) => labelOf(job, "verification")) ?? [];
  return (
    <Card title="Jobs of checks">
      <Found of={jobs} />
      {jobs.value && checks.length === 0 && <Empty>No check has been made yet.</Empty>}
      {checks.length > 0 && (
        <div class="scrolls" role="region" aria-label="Checks" tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th>Executor</th>
                <th>Its job</th>
                <th>Ran on</th>
                <th class="number">Ran</th>
                <th class="number">Cost</th>
                <th class="number">Begun</th>
              </tr>
            </thead>
            <tbody>
              {checks.map((job) => (
                <tr key={job.id}>
                  <td>
                    <Link to={`/jobs/${job.id}`}>{job.name.slice(CHECK.length)}</Link>
                  </td>
                  <td>
                    <StateBadge state={job.state} />
                  </td>
                  <td>{placeOf(job)}</td>
                  <td class="number">{format.duration(ranS(job, now))}</td>
                  <td class="number">{format.money(job.cost?.amount, job.cost?.currency)}</td>
                  <td class="number quiet">{format.ago(job.created_at, now)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {checks.length > 0 && (
        <p class="quiet small">
          That its job completed does not mean that it passed: that stands under Verdicts.
        </p>
      )}
    </Card>
  );
}

function placeOf(job: Job): string {
  const gpus = job.gpus?.length ? `, ${job.gpus.length} GPU` : "";
  return job.provider ? `${job.provider}${gpus}` : "–";
}
