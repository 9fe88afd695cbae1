// What is wrong now, and the newest warnings and failures.

import { useEffect, useState } from "preact/hooks";

import { get, type Schemas } from "../api/client";
import { feed, type ServerEvent } from "../api/events";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { Card, Found, Link } from "../ui/parts";
import { alarmsOf, type Disked, type Gpu } from "./gpu-words";

type Names = ReadonlyMap<string, string>;
const MOST_EVENTS = 200;
const SHOWN = 8;

const isWarning = (event: ServerEvent) =>
  /warning|filling|missed|spent|short|failed|unknown|full|down/.test(event.kind);

export function Attention({ gpus }: { gpus: readonly Gpu[] }) {
  const now = useNow();
  const machines = useResource<{ items: Disked[] }>("/api/v1/nodes", {}, { everyS: 30 });
  const events = useResource<{ items: ServerEvent[] }>("/api/v1/events", {
    newest: true,
    limit: MOST_EVENTS,
  });
  const { patch } = events;
  useEffect(
    () =>
      feed.listen((event) => {
        if (event.seq === null || !isWarning(event)) return;
        patch(({ items }) => ({ items: [...items, event].slice(-MOST_EVENTS) }));
      }),
    [patch],
  );
  const found = (events.value?.items ?? []).filter(isWarning).reverse().slice(0, SHOWN);
  const alarms = alarmsOf(gpus, machines.value?.items ?? []);
  const names = useNames(found.flatMap(({ job_id: id }) => id ?? []));
  return (
    <Card title="Needs attention">
      <Found of={events} />
      {events.value && found.length + alarms.length === 0 && <p class="quiet">Nothing.</p>}
      {alarms.map((alarm) => (
        <div key={alarm}>{alarm}</div>
      ))}
      {found.map((event) => (
        <div key={event.seq} class="row wide">
          <Warning event={event} names={names} />
          <span class="quiet small">{format.ago(event.at, now)}</span>
        </div>
      ))}
    </Card>
  );
}

function Warning({ event, names }: { event: ServerEvent; names: Names }) {
  const { job_id: id } = event;
  if (!id) return <span class="cut">{wordsOf(event)}</span>;
  return (
    <span class="row">
      <Link to={`/jobs/${id}`} class="cut">
        {names.get(id) ?? format.shortId(id)}
      </Link>
      <span class="quiet cut">{wordsOf(event)}</span>
    </span>
  );
}

/** What these jobs are called. One at a time is asked for, however many fail at once. */
function useNames(ids: readonly string[]): Names {
  const [names, setNames] = useState<Names>(new Map());
  const missing = ids.find((id) => !names.has(id));
  useEffect(() => {
    if (!missing) return;
    const request = new AbortController();
    const know = (name: string) => setNames((old) => new Map(old).set(missing, name));
    get<Schemas["Job"]>(`/api/v1/jobs/${missing}`, {}, request.signal).then(
      (job) => know(nameOf(job)),
      // It has been removed, or the server is gone.
      () => request.signal.aborted || know(format.shortId(missing)),
    );
    return () => request.abort();
  }, [missing]);
  return names;
}

function nameOf({ id, name, array_index: index }: Schemas["Job"]): string {
  const words = name || format.shortId(id);
  return typeof index === "number" ? `${words}, task ${index}` : words;
}

function wordsOf(event: ServerEvent): string {
  const said = event.data["message"] ?? event.data["advice"] ?? event.data["reason"];
  const kind = event.kind.replace(".", " ").replaceAll("_", " ");
  const words = kind[0]!.toUpperCase() + kind.slice(1);
  return typeof said === "string" ? `${words}: ${said.replaceAll("_", " ")}` : words;
}
