// Who signed in and who was refused, and who changed what, as the audit log has it.

import { useState } from "preact/hooks";

import { get, type Schemas } from "../api/client";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { setQuery, usePlace } from "../state/router";
import { session } from "../state/session";
import { ActionButton, Badge, Card, Empty, ErrorNote, type Tone } from "../ui/parts";

type Line = Schemas["AuditLine"];
type Page = Schemas["AuditPage"];
const LIMIT = 200;
const EVENTS = ["admitted", "refused", "act"] as const;
const TONES: Record<string, Tone> = { admitted: "good", refused: "bad", act: "plain" };

export function SignInsTab() {
  const { query } = usePlace();
  const event = EVENTS.find((one) => one === query.get("event"));
  const who = query.get("who") || undefined;
  const asked = { event, who, limit: LIMIT };
  if (!session.may("administrator"))
    return <Empty>Only administrators see who signed in and who was refused.</Empty>;
  return (
    <Card title="Sign-ins and changes" action={<Filters asked={asked} />}>
      <SignIns key={JSON.stringify(asked)} asked={asked} />
    </Card>
  );
}

interface Asked {
  event: string | undefined;
  who: string | undefined;
  limit: number;
}

function SignIns({ asked }: { asked: Asked }) {
  const newest = useResource<Page>("/api/v1/audit", { ...asked }, { everyS: 15 });
  const [older, setOlder] = useState<Line[]>([]);
  const [error, setError] = useState<Error | null>(null);
  const first = newest.value?.items ?? [];
  const lines = [...first, ...older];
  async function more(): Promise<void> {
    const before = lines.at(-1)?.at;
    const page = await get<Page>("/api/v1/audit", { ...asked, before });
    setOlder([...older, ...page.items]);
  }
  return (
    <>
      <ErrorNote error={error ?? newest.error} />
      {newest.value && lines.length === 0 && <Empty>Nothing fits these filters.</Empty>}
      {lines.length > 0 && <LineTable lines={lines} />}
      {first.length === LIMIT && (
        <div>
          <ActionButton act={more} onError={setError}>
            Show older ones
          </ActionButton>
        </div>
      )}
    </>
  );
}

function Filters({ asked }: { asked: Asked }) {
  return (
    <span class="row">
      <select
        aria-label="Event"
        value={asked.event ?? ""}
        onChange={(event) => setQuery({ event: event.currentTarget.value })}
      >
        <option value="">all</option>
        {EVENTS.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
      <input
        aria-label="User"
        placeholder="user"
        value={asked.who ?? ""}
        onChange={(event) => setQuery({ who: event.currentTarget.value })}
      />
    </span>
  );
}

function LineTable({ lines }: { lines: Line[] }) {
  const now = useNow();
  return (
    <div class="scrolls" role="region" aria-label="Sign-ins and changes" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th>When</th>
            <th>What</th>
            <th>Who</th>
            <th>From</th>
            <th>Request</th>
            <th>Outcome</th>
            <th class="number">Times</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((line, at) => (
            <tr key={`${line.at} ${at}`}>
              <td class="quiet whole" title={format.time(line.at)}>
                {format.ago(line.at, now)}
              </td>
              <td>
                <Badge tone={TONES[line.event] ?? "plain"}>{line.event}</Badge>
              </td>
              <td>
                {line.who ?? "owner or nobody"}
                {line.for && <span class="quiet"> for {line.for}</span>}
              </td>
              <td class="quiet">{line.from || "–"}</td>
              <td class="words mono small">{line.what || "–"}</td>
              <td>{line.outcome.replaceAll("_", " ")}</td>
              <td class="number">{format.count(line.count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
