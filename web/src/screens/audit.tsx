// The journal: what has happened here, and who did it. The filters are in the address.

import { useEffect, useMemo, useState } from "preact/hooks";

import type { ServerEvent } from "../api/events";
import { feed } from "../api/events";
import * as format from "../format";
import { serverNow } from "../state/clock";
import { useResource } from "../state/resource";
import { setQuery, usePlace } from "../state/router";
import { session } from "../state/session";
import { Dialog, Empty, Found, Link } from "../ui/parts";
import { Windowed } from "../ui/window";
import "../ui/audit.css";

const LINE_HEIGHT = 34;
const FIRST = 500;
/** As many as the API gives at once. */
const MOST = 10_000;
const DAY_S = 86_400;
const PERIODS: Record<string, number> = {
  "an hour": 3600,
  "a day": DAY_S,
  "a week": 7 * DAY_S,
  "a month": 30 * DAY_S,
};
/** What people look for, and the kinds of events that tell of it. */
const SUBJECTS: Record<string, RegExp> = {
  "users and tokens": /^(user|token|project)\./,
  jobs: /^(job|array|schedule)\./,
  attempts: /^(attempt|checkpoint|artifacts)\./,
  batches: /^(batch|item)\./,
  machines: /^(node|gpu|disk|provider)\./,
  models: /^model\./,
  "money and reservations": /^(budget|reservation)\./,
  data: /^(dataset|workspace|history)\./,
  trust: /^trust\./,
  "what needs attention": /warning|filling|missed|spent|short|failed|unknown|full|down/,
};

export default function AuditScreen() {
  const { query } = usePlace();
  const job = query.get("job") || undefined;
  const period = PERIODS[query.get("since") ?? ""];
  // To the minute, so that the question stays the same while the page is open.
  const [openedAt] = useState(serverNow());
  const since = period ? Math.floor((openedAt - period) / 60) * 60 : undefined;
  const [limit, setLimit] = useState(FIRST);
  const page = useResource<{ items: ServerEvent[] }>("/api/v1/events", {
    newest: true,
    limit,
    job,
    since,
  });
  // It may be given by its name.
  const news = useNews(job && (page.value?.items.at(-1)?.job_id ?? job));
  const [chosen, setChosen] = useState<ServerEvent | null>(null);
  const all = useMemo(() => together(page.value?.items ?? [], news), [page.value, news]);
  const shown = all.filter(filterOf(query));
  const mayBeMore = page.value !== null && page.value.items.length >= limit && limit < MOST;
  return (
    <>
      <div class="head">
        <h1>Audit</h1>
        <span class="quiet">
          {format.count(shown.length)} of the newest {format.count(all.length)} events
        </span>
        <span class="spring" />
        {mayBeMore && (
          <button type="button" class="button" onClick={() => setLimit(Math.min(limit * 5, MOST))}>
            Look further back
          </button>
        )}
      </div>
      <Filters query={query} />
      <Found of={page} />
      <div class="list audit">
        <div class="line titles" aria-hidden="true">
          <span>When</span>
          <span>What</span>
          <span>About</span>
          <span class="less">In short</span>
        </div>
        {page.value && shown.length === 0 && <Empty>No event is like that.</Empty>}
        <Windowed
          items={shown}
          lineHeight={LINE_HEIGHT}
          class="body"
          label="Events"
          draw={(event) => <EventLine key={event.seq} event={event} onChoose={setChosen} />}
        />
      </div>
      {session.may("administrator") && (
        <p class="quiet small">
          Who was admitted and who was refused stands among the{" "}
          <Link to="/people?show=sign-ins">sign-ins</Link>.
        </p>
      )}
      {chosen && <About event={chosen} onClose={() => setChosen(null)} />}
    </>
  );
}

/** Events that have come since the screen was opened. */
function useNews(job: string | undefined): ServerEvent[] {
  const [news, setNews] = useState<ServerEvent[]>([]);
  useEffect(() => {
    setNews([]);
    return feed.listen((event) => {
      // Progress is no part of the journal.
      if (event.seq === null || (job && event.job_id !== job)) return;
      setNews((old) => [...old, event].slice(-MOST));
    });
  }, [job]);
  return news;
}

/** Newest first, each once. */
function together(read: readonly ServerEvent[], news: readonly ServerEvent[]): ServerEvent[] {
  const bySeq = new Map([...read, ...news].map((event) => [event.seq, event]));
  return [...bySeq.values()].sort((a, b) => b.seq! - a.seq!);
}

function filterOf(query: URLSearchParams): (event: ServerEvent) => boolean {
  const subject = SUBJECTS[query.get("about") ?? ""];
  const text = (query.get("text") ?? "").trim().toLowerCase();
  return (event) => {
    if (subject && !subject.test(event.kind)) return false;
    return !text || JSON.stringify(event).toLowerCase().includes(text);
  };
}

function Filters({ query }: { query: URLSearchParams }) {
  return (
    <form class="head" role="search" onSubmit={(event) => event.preventDefault()}>
      <Select name="about" label="About" all="Everything" words={Object.keys(SUBJECTS)} />
      <Select name="since" label="Since" all="Ever" words={Object.keys(PERIODS)} />
      <input
        type="search"
        aria-label="Text"
        placeholder="Text, such as a name"
        value={query.get("text") ?? ""}
        onInput={(event) => setQuery({ text: event.currentTarget.value })}
      />
      <input
        type="search"
        aria-label="Job"
        placeholder="Id of a job"
        value={query.get("job") ?? ""}
        onChange={(event) => setQuery({ job: event.currentTarget.value.trim() })}
      />
    </form>
  );
}

function Select(props: { name: string; label: string; all: string; words: string[] }) {
  const { query } = usePlace();
  return (
    <select
      aria-label={props.label}
      value={query.get(props.name) ?? ""}
      onChange={(event) => setQuery({ [props.name]: event.currentTarget.value })}
    >
      <option value="">{props.all}</option>
      {props.words.map((word) => (
        <option key={word}>{word}</option>
      ))}
    </select>
  );
}

function EventLine(props: { event: ServerEvent; onChoose: (event: ServerEvent) => void }) {
  const { event } = props;
  return (
    <div class="line" role="listitem">
      <time class="quiet cut" dateTime={new Date(event.at * 1000).toISOString()}>
        <span class="less">{format.time(event.at)}</span>
        <span class="only-narrow">{format.clockTime(event.at)}</span>
      </time>
      <button type="button" class="button plain cut" onClick={() => props.onChoose(event)}>
        {event.kind.replace(".", " ").replaceAll("_", " ")}
      </button>
      <span class="cut">
        {event.job_id ? (
          <Link to={`/jobs/${event.job_id}`} class="mono">
            {format.shortId(event.job_id)}
          </Link>
        ) : (
          subjectOf(event)
        )}
      </span>
      <span class="quiet small cut less">{inShort(event)}</span>
    </div>
  );
}

const NAMED = ["user", "project", "name", "budget", "schedule", "place", "dataset", "node", "gpu"];

/** What an event without a job is about. */
function subjectOf(event: ServerEvent): string {
  const found = NAMED.map((name) => event.data[name]).find((value) => typeof value === "string");
  return (found as string | undefined) ?? "";
}

/** The rest of what it says, without long ids. */
function inShort(event: ServerEvent): string {
  const subject = event.job_id ? "" : subjectOf(event);
  return Object.entries(event.data)
    .filter(([, value]) => value !== null && value !== "" && typeof value !== "object")
    .filter(([, value]) => value !== subject && !/^[a-z]+_[0-9a-f]{32}$/.test(String(value)))
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${valueOf(name, value)}`)
    .join(", ");
}

/** What is less is no time, but a count: in UTC seconds, of 2001. */
const EARLIEST = 1e9;

/** Times and measured values as people read them. */
function valueOf(name: string, value: unknown): string {
  if (typeof value !== "number") return String(value);
  const isTime = /(^|_)(at|until|from|next)$/.test(name) && value > EARLIEST;
  if (isTime) return format.time(value);
  return Number.isInteger(value) ? String(value) : format.figure(value);
}

function About({ event, onClose }: { event: ServerEvent; onClose: () => void }) {
  return (
    <Dialog title={event.kind} onClose={onClose}>
      <p class="quiet">
        Event {event.seq}, {format.time(event.at)}
      </p>
      {event.job_id && <Link to={`/jobs/${event.job_id}`}>To the job</Link>}
      <pre class="sunken scrolls" tabIndex={0}>
        {JSON.stringify(event.data, null, 2)}
      </pre>
      <div>
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
