// The output of a job: its end at first, earlier lines when one scrolls up, new lines as
// they come; or the lines that a search finds.

import { useEffect, useRef, useState } from "preact/hooks";

import { get, type Query, type Schemas } from "../api/client";
import * as format from "../format";
import { Empty, ErrorNote } from "../ui/parts";

interface Line {
  attempt: number;
  offset: number;
  text: string;
  time: number | null;
  level?: string | null;
}

type Page = Schemas["LogLines"];
const PAGE = 500;
const LINE_HEIGHT = 20;
const WAIT_S = 10;
const PAUSE_MS = 1000;
// More would be too high for a browser's own limit on the height of things.
const MOST_LINES = 1_000_000;
const LEVELS = ["", "info", "warning", "error", "critical"];

export function Log({ job, isOver }: { job: string; isOver: boolean }) {
  const [search, setSearch] = useState("");
  const [isRegex, setRegex] = useState(false);
  const [level, setLevel] = useState("");
  const [follows, setFollows] = useState(true);
  const [hidesMetrics, setHidesMetrics] = useState(true);
  const query: Query = {
    search: isRegex || !search ? undefined : search,
    regex: isRegex && search ? search : undefined,
    ignore_case: search ? true : undefined,
    level: level || undefined,
  };
  const log = useLog(job, query, isOver);
  const shown = hidesMetrics
    ? log.lines.filter((line) => !line.text.startsWith("GPUYARD_METRIC "))
    : log.lines;
  return (
    <div class="stack">
      <form class="head" role="search" onSubmit={(event) => event.preventDefault()}>
        <input
          type="search"
          aria-label="Search the log"
          placeholder="search"
          onChange={(event) => setSearch(event.currentTarget.value)}
        />
        <Tick label="expression (RE2)" value={isRegex} onChange={setRegex} />
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
        <Tick label="hide metric lines" value={hidesMetrics} onChange={setHidesMetrics} />
        <span class="spring" />
        <Tick label="follow" value={follows} onChange={setFollows} />
        <a class="button" href={`/api/v1/jobs/${job}/logs`} download={`${job}.log`}>
          Download
        </a>
      </form>
      <ErrorNote error={log.error} />
      <Lines
        lines={shown}
        follows={follows}
        onTop={log.earlier}
        hasEarlier={log.hasEarlier}
        isFound={Boolean(search)}
      />
    </div>
  );
}

function Tick(props: { label: string; value: boolean; onChange: (value: boolean) => void }) {
  return (
    <label class="row quiet">
      <input
        type="checkbox"
        checked={props.value}
        onChange={(event) => props.onChange(event.currentTarget.checked)}
      />
      {props.label}
    </label>
  );
}

interface LinesProps {
  lines: Line[];
  follows: boolean;
  onTop: () => void;
  hasEarlier: boolean;
  isFound: boolean;
}

function Lines({ lines, follows, onTop, hasEarlier, isFound }: LinesProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const former = useRef<Line | undefined>(undefined);

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    setHeight(element.clientHeight);
    const before = former.current ? lines.indexOf(former.current) : 0;
    former.current = lines[0];
    // What was in sight stays there when earlier lines come above it.
    if (before > 0) element.scrollTop += before * LINE_HEIGHT;
    else if (follows) element.scrollTop = element.scrollHeight;
  }, [lines, follows]);

  function scrolled(event: Event): void {
    const element = event.currentTarget as HTMLDivElement;
    setTop(element.scrollTop);
    if (element.scrollTop < 10 * LINE_HEIGHT && hasEarlier) onTop();
  }

  if (lines.length === 0) return <Empty>No line is like that.</Empty>;
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
  error: Error | null;
  earlier: () => void;
}

function useLog(job: string, query: Query, isOver: boolean): LoadedLog {
  const [lines, setLines] = useState<Line[]>([]);
  const [previous, setPrevious] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const path = `/api/v1/jobs/${job}/lines`;
  const isBusy = useRef(false);

  useEffect(() => {
    const ended = new AbortController();
    setLines([]);
    setPrevious(null);
    read(ended.signal).catch((problem: Error) => ended.signal.aborted || setError(problem));
    return () => ended.abort();
  }, [path, JSON.stringify(query), isOver]);

  async function read(signal: AbortSignal): Promise<void> {
    setError(null);
    const begin = await get<Page>(path, { ...query, tail: PAGE, follow: true }, signal);
    setLines(begin.items as unknown as Line[]);
    setPrevious(begin.previous ?? null);
    let cursor = begin.next ?? null;
    while (cursor && !signal.aborted) {
      const page: Page = await get<Page>(
        path,
        { ...query, cursor, follow: true, wait_s: WAIT_S, limit: PAGE },
        signal,
      );
      cursor = page.next ?? null;
      const found = page.items as unknown as Line[];
      if (found.length > 0) setLines((old) => [...old, ...found].slice(-MOST_LINES));
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  async function readEarlier(): Promise<void> {
    if (isBusy.current || previous === null) return;
    isBusy.current = true;
    try {
      const page = await get<Page>(path, { ...query, before: previous, tail: PAGE });
      setLines((old) => [...(page.items as unknown as Line[]), ...old]);
      setPrevious(page.previous ?? null);
    } catch (problem) {
      setError(problem as Error);
    }
    isBusy.current = false;
  }

  return { lines, hasEarlier: previous !== null, error, earlier: () => void readEarlier() };
}
