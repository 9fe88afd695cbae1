// The verdicts of checks: what was judged, with its evidence, and the trust that came of it.

import { useState } from "preact/hooks";

import type { Schemas } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { setQuery, usePlace } from "../state/router";
import { Badge, Card, Dialog, Empty, Found, Link, type Tone } from "../ui/parts";

type Verification = Schemas["Verification"];
const SHOWN = 200;
const TONES: Record<string, Tone> = {
  passed: "good",
  failed: "bad",
  excused: "plain",
  blameless: "warn",
};
// Whoever leaves verdicts changes the trust right after.
const isAboutTrust = (event: ServerEvent) => event.kind === "trust.changed";
const WIDTH = 120;
const HEIGHT = 28;

export function Verdicts() {
  const { query } = usePlace();
  const executor = query.get("executor") ?? "";
  const found = useResource<Schemas["VerificationPage"]>(
    "/api/v1/verifications",
    { limit: SHOWN, executor: executor || undefined },
    { when: isAboutTrust, everyS: 60 },
  );
  const [shown, setShown] = useState<Verification | null>(null);
  const verdicts = found.value?.items ?? [];
  return (
    <>
      {verdicts.length > 0 && (
        <Card title="Executors">
          <Executors verdicts={verdicts} />
        </Card>
      )}
      <Card
        title={executor ? `Verdicts of ${executor}` : "Verdicts"}
        action={
          executor && (
            <button type="button" class="button" onClick={() => setQuery({ executor: "" })}>
              All executors
            </button>
          )
        }
      >
        <Found of={found} />
        {found.value && verdicts.length === 0 && (
          <Empty>
            No verdict has been left here yet. <code>gpuyard verify run</code> makes some.
          </Empty>
        )}
        {verdicts.length > 0 && <VerdictTable verdicts={verdicts} onShow={setShown} />}
      </Card>
      {shown && <About verdict={shown} onClose={() => setShown(null)} />}
    </>
  );
}

/** Of each executor, how its trust went, the oldest check first. */
function Executors({ verdicts }: { verdicts: Verification[] }) {
  const now = useNow();
  const byExecutor = new Map<string, Verification[]>();
  for (const verdict of [...verdicts].reverse()) {
    const own = byExecutor.get(verdict.executor);
    if (own) own.push(verdict);
    else byExecutor.set(verdict.executor, [verdict]);
  }
  return (
    <div class="scrolls" role="region" aria-label="Executors" tabIndex={0}>
      <table class="middle">
        <thead>
          <tr>
            <th>Executor</th>
            <th>Class</th>
            <th class="number">Trust</th>
            <th>Over time</th>
            <th class="number">Passed</th>
            <th class="number">Failed</th>
            <th class="number">Newest</th>
          </tr>
        </thead>
        <tbody>
          {[...byExecutor].map(([executor, own]) => (
            <tr key={executor}>
              <td>
                <Link to={`/verification?executor=${encodeURIComponent(executor)}`}>
                  {executor}
                </Link>
              </td>
              <td>{own.at(-1)!.gpu_class}</td>
              <td class="number">{format.figure(own.at(-1)!.trust)}</td>
              <td>
                <TrustLine executor={executor} verdicts={own} />
              </td>
              <td class="number">{countOf(own, "passed")}</td>
              <td class="number">{countOf(own, "failed")}</td>
              <td class="number quiet">{format.ago(own.at(-1)!.at, now)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** An outcome such as `other_engine`, for people. */
function inWords(outcome: string): string {
  return outcome.replaceAll("_", " ");
}

function countOf(verdicts: Verification[], outcome: string): number {
  return verdicts.filter((one) => one.outcome === outcome).length;
}

function TrustLine({ executor, verdicts }: { executor: string; verdicts: Verification[] }) {
  const known = verdicts.flatMap(({ trust }) => (typeof trust === "number" ? [trust] : []));
  if (known.length < 2) return <span class="quiet">–</span>;
  const points = known.map((trust, at) => {
    const x = (at / (known.length - 1)) * (WIDTH - 4) + 2;
    return `${x.toFixed(1)},${((1 - trust) * (HEIGHT - 4) + 2).toFixed(1)}`;
  });
  const label =
    `Trust in ${executor}: from ${format.figure(known[0])} to ${format.figure(known.at(-1))}` +
    ` in ${known.length} checks`;
  return (
    <svg
      class="spark"
      role="img"
      aria-label={label}
      width={WIDTH}
      height={HEIGHT}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
    >
      <polyline points={points.join(" ")} fill="none" stroke="var(--accent)" stroke-width="2" />
    </svg>
  );
}

interface TableProps {
  verdicts: Verification[];
  onShow: (verdict: Verification) => void;
}

function VerdictTable({ verdicts, onShow }: TableProps) {
  const now = useNow();
  return (
    <div class="scrolls" role="region" aria-label="Verdicts" tabIndex={0}>
      <table class="middle">
        <thead>
          <tr>
            <th>Check</th>
            <th>Executor</th>
            <th>Class</th>
            <th>Verdict</th>
            <th>Why</th>
            <th class="number">Answered in</th>
            <th class="number">Judged</th>
          </tr>
        </thead>
        <tbody>
          {verdicts.map((verdict) => (
            <tr key={verdict.id}>
              <td>
                <button
                  type="button"
                  class="button"
                  aria-label={`What was judged of ${verdict.executor}, ${format.shortId(verdict.id)}`}
                  onClick={() => onShow(verdict)}
                >
                  {format.shortId(verdict.id)}
                </button>
              </td>
              <td>{verdict.executor}</td>
              <td>{verdict.gpu_class}</td>
              <td>
                <Badge tone={TONES[verdict.outcome] ?? "warn"}>{inWords(verdict.outcome)}</Badge>
              </td>
              <td class="words">{verdict.reason || "–"}</td>
              <td class="number">{format.duration(verdict.solve_s)}</td>
              <td class="number quiet whole">{format.ago(verdict.at, now)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function markOf(ok: boolean | null | undefined): [Tone, string] {
  if (ok === true) return ["good", "right"];
  return ok === false ? ["bad", "wrong"] : ["warn", "not judged"];
}

function About({ verdict, onClose }: { verdict: Verification; onClose: () => void }) {
  return (
    <Dialog title={`${verdict.executor}: ${inWords(verdict.outcome)}`} onClose={onClose}>
      <dl class="facts">
        <dt>Check</dt>
        <dd class="mono">{verdict.id}</dd>
        <dt>Claims to be</dt>
        <dd>{verdict.gpu_class}</dd>
        <dt>Place</dt>
        <dd>{verdict.place}</dd>
        <dt>Judged</dt>
        <dd>{format.time(verdict.at)}</dd>
        <dt>Trust after it</dt>
        <dd>{format.figure(verdict.trust)}</dd>
        <dt>Its job</dt>
        <dd>{verdict.job ? <Link to={`/jobs/${verdict.job}`}>{verdict.job}</Link> : "–"}</dd>
        <dt>Left by</dt>
        <dd>{verdict.recorded_by ?? "owner"}</dd>
      </dl>
      <div class="scrolls" role="region" aria-label="What was judged" tabIndex={0}>
        <table>
          <tbody>
            {verdict.lines?.map((line) => {
              const [tone, word] = markOf(line.ok);
              return (
                <tr key={line.name}>
                  <td>{line.name}</td>
                  <td>
                    <Badge tone={tone}>{word}</Badge>
                  </td>
                  <td class="words quiet">{line.reason}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <div class="row">
        {verdict.has_evidence ? (
          <a
            class="button"
            href={`/api/v1/verifications/${verdict.id}/evidence`}
            download={`${verdict.id}.json`}
          >
            Download the evidence
          </a>
        ) : (
          <span class="quiet small">
            Its evidence is where it was checked: <code>gpuyard verify evidence {verdict.id}</code>
          </span>
        )}
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
