// The output of a job: its end at first, earlier lines when one scrolls up, new lines as
// they come; or the lines that a search finds.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { get, pause, type Query, type Schemas } from "../api/client";
import * as format from "../format";
import { patiently } from "../state/patience";
import { useSettled } from "../state/settled";
import { Tick } from "../ui/forms";
import { Empty, ErrorNote, Loading } from "../ui/parts";

interface Line {
  attempt: number;
  offset: number;
  text: string;
  time: number | null;
  level?: string | null;
}

type Page = Schemas["LogLines"];
const PAGE = 500;
// Fewer would not fill a window, so that nobody could scroll to what is before them.
const ENOUGH = 100;
const LINE_HEIGHT = 20;
const WAIT_S = 10;
const PAUSE_MS = 1000;
// More would be too high for a browser's own limit on the height of things.
const MOST_LINES = 1_000_000;
const LEVELS = ["", "info", "warning", "error", "critical"];
const SECTIONS = ["", "setup", "evaluation", "traceback"];

export function Log({ job, isOver }: { job: string; isOver: boolean }) {
  const [typed, setTyped] = useState("");
  const search = useSettled(typed);
  const [isRegex, setRegex] = useState(false);
  const [level, setLevel] = useState("");
  const [section, setSection] = useState("");
  const [follows, setFollows] = useState(true);
  const [hidesMetrics, setHidesMetrics] = useState(true);
  const query: Query = {
    search: isRegex || !search ? undefined : search,
    regex: isRegex && search ? search : undefined,
    ignore_case: search ? true : undefined,
    level: level || undefined,
    section: section || undefined,
  };
  const log = useLog(job, query, isOver);
  const shown = useMemo(
    () =>
      hidesMetrics
        ? log.lines.filter((line) => !line.text.startsWith("GPUYARD_METRIC "))
        : log.lines,
    [log.lines, hidesMetrics],
  );
  return (
    <div class="stack">
      <form class="head" role="search" onSubmit={(event) => event.preventDefault()}>
        <input
          type="search"
          aria-label="Search the log"
          placeholder="search"
          onChange={(event) => setTyped(event.currentTarget.value)}
        />
        <Tick label="expression (RE2)" checked={isRegex} onChange={setRegex} />
        <select
          aria-label="Least level"
          value={level}
          onChange={(event) => setLevel(event.currentTarget.value)}
        >
          {LEVELS.map((one) => (
            <option key={one} value={one}>
              {one ? `${one} and worse` : "every level"}
            </option>
          ))}
        </select>
        <select
          aria-label="Part of the log"
          value={section}
          onChange={(event) => setSection(event.currentTarget.value)}
        >
          {SECTIONS.map((one) => (
            <option key={one} value={one}>
              {one || "every part"}
            </option>
          ))}
        </select>
        <Tick label="hide metric lines" checked={hidesMetrics} onChange={setHidesMetrics} />
        <span class="spring" />
        <div class="row">
          <Tick label="follow" checked={follows} onChange={setFollows} />
          <a class="button" href={`/api/v1/jobs/${job}/logs`} download={`${job}.log`}>
            Download
          </a>
        </div>
      </form>
      <ErrorNote error={log.error} />
      <Lines
        lines={shown}
        follows={follows}
        onTop={log.earlier}
        hasEarlier={log.hasEarlier}
        isFound={Boolean(search)}
        isRead={log.isRead || log.error !== null}
        isSearching={log.isSearching}
        none={
          search || level || section || log.lines.length > 0
            ? "No line is like that."
            : "It has written nothing yet."
        }
      />
    </div>
  );
}

interface LinesProps {
  lines: Line[];
  follows: boolean;
  onTop: () => void;
  hasEarlier: boolean;
  isFound: boolean;
  isRead: boolean;
  isSearching: boolean;
  /** What is said where there is no line. */
  none: string;
}

function Lines({ lines, follows, onTop, hasEarlier, isFound, ...about }: LinesProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const former = useRef<Line | undefined>(undefined);
  // Who has scrolled up reads on, also while new lines come.
  const isAtEnd = useRef(true);

  useEffect(() => {
    isAtEnd.current = true;
  }, [follows]);

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    setHeight(element.clientHeight);
    const before = former.current ? lines.indexOf(former.current) : 0;
    former.current = lines[0];
    // What was in sight stays there when earlier lines come above it.
    if (before > 0) element.scrollTop += before * LINE_HEIGHT;
    else if (follows && isAtEnd.current) element.scrollTop = element.scrollHeight;
    // A search has fewer lines, and where nothing scrolls, nobody tells.
    setTop(element.scrollTop);
  }, [lines, follows]);

  function scrolled(event: Event): void {
    const element = event.currentTarget as HTMLDivElement;
    setTop(element.scrollTop);
    isAtEnd.current =
      element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_HEIGHT;
    if (element.scrollTop < 10 * LINE_HEIGHT && hasEarlier) onTop();
  }

  if (lines.length === 0) {
    if (about.isSearching) return <Empty>Looking through the log …</Empty>;
    return about.isRead ? <Empty>{about.none}</Empty> : <Loading />;
  }
  const first = Math.max(0, Math.floor(top / LINE_HEIGHT) - 20);
  const last = Math.min(lines.length, Math.ceil((top + height) / LINE_HEIGHT) + 20);
  return (
    <div ref={box} class="log" role="log" aria-label="Output" tabIndex={0} onScroll={scrolled}>
      <div style={{ height: `${lines.length * LINE_HEIGHT}px`, position: "relative" }}>
        <div style={{ position: "absolute", top: `${first * LINE_HEIGHT}px` }}>
          {lines.slice(first, last).map((line) => (
            <LogLine key={`${line.attempt}:${line.offset}`} line={line} isFound={isFound} />
          ))}
        </div>
      </div>
    </div>
  );
}

function LogLine({ line, isFound }: { line: Line; isFound: boolean }) {
  const level = line.level ?? "";
  const look =
    level === "warning" ? "warning-level" : /error|critical/.test(level) ? "error error-level" : "";
  return (
    <div class={`line ${look} ${isFound ? "found" : ""}`}>
      <time>{line.time ? format.clockTime(line.time) : ""}</time>
      <span>{plain(line.text)}</span>
    </div>
  );
}

/** The text without what would colour or move things in a terminal. */
function plain(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, "").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
}

interface LoadedLog {
  lines: Line[];
  hasEarlier: boolean;
  /** Its end, or what was found there. */
  isRead: boolean;
  isSearching: boolean;
  error: Error | null;
  earlier: () => void;
}

function useLog(job: string, query: Query, isOver: boolean): LoadedLog {
  const [lines, setLines] = useState<Line[]>([]);
  const [previous, setPrevious] = useState<string | null>(null);
  const [isRead, setRead] = useState(false);
  const [isSearching, setSearching] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const path = `/api/v1/jobs/${job}/lines`;
  const ended = useRef(new AbortController());

  useEffect(() => {
    const mine = new AbortController();
    ended.current = mine;
    setLines([]);
    setPrevious(null);
    setRead(false);
    setSearching(false);
    setError(null);
    read(mine.signal).catch(failed(mine.signal));
    return () => mine.abort();
  }, [path, JSON.stringify(query), isOver]);

  const failed = (signal: AbortSignal) => (problem: Error) => {
    if (!signal.aborted) setError(problem);
  };

  const ask = (asked: Query, signal: AbortSignal): Promise<Page> =>
    patiently(() => get<Page>(path, asked, signal), signal, setError);

  async function read(signal: AbortSignal): Promise<void> {
    const end = await ask({ ...query, tail: PAGE, follow: true }, signal);
    setLines(linesOf(end));
    setRead(true);
    setPrevious(end.previous ?? null);
    const found = end.items.length;
    await Promise.all([
      readNews(end.next ?? null, signal),
      found < ENOUGH ? readEarlier(end.previous ?? null, signal) : undefined,
    ]);
  }

  async function readNews(first: string | null, signal: AbortSignal): Promise<void> {
    let cursor = first;
    while (cursor && !signal.aborted) {
      const asked: Query = { ...query, cursor, follow: true, wait_s: WAIT_S, limit: PAGE };
      const page: Page = await ask(asked, signal);
      if (signal.aborted) return;
      cursor = page.next ?? null;
      const found = linesOf(page);
      if (found.length > 0) setLines((old) => [...old, ...found].slice(-MOST_LINES));
      await pause(PAUSE_MS);
    }
  }

  /** One answer to a search looks at a part of the log only, and may have found nothing. */
  async function readEarlier(before: string | null, signal: AbortSignal): Promise<void> {
    let cursor = before;
    let count = 0;
    setSearching(true);
    try {
      while (cursor !== null && count < ENOUGH && !signal.aborted) {
        const page: Page = await get<Page>(path, { ...query, before: cursor, tail: PAGE }, signal);
        if (signal.aborted) return;
        const found = linesOf(page);
        cursor = page.previous ?? null;
        count += found.length;
        setLines((old) => [...found, ...old]);
        setPrevious(cursor);
      }
    } finally {
      if (!signal.aborted) setSearching(false);
    }
  }

  function earlier(): void {
    if (isSearching || previous === null) return;
    const { signal } = ended.current;
    readEarlier(previous, signal).catch(failed(signal));
  }

  return { lines, hasEarlier: previous !== null, isRead, isSearching, error, earlier };
}

function linesOf(page: Page): Line[] {
  return page.items as unknown as Line[];
}
