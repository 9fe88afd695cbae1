// Sweeps and flows: many jobs that were submitted as one thing.

import { address } from "../api/client";
import * as format from "../format";
import { type FlowLine, flowsOf } from "../groups/flows";
import { type Counts, type Job, SELDOM, wordsOf } from "../groups/jobs";
import { type SweepLine, sweepsOf } from "../groups/sweeps";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { Badge, Card, Empty, ErrorNote, Found, Link, StateBadge, type Tone } from "../ui/parts";

interface Jobs {
  items: Job[];
  next: string | null;
}

const NEWEST = 1000;

export default function SweepsScreen() {
  return (
    <>
      <div class="head">
        <h1>Sweeps and flows</h1>
      </div>
      <Sweeps />
      <Flows />
    </>
  );
}

function useLabelled(label: string) {
  return useResource<Jobs>("/api/v1/jobs", { label, limit: NEWEST }, SELDOM);
}

function Sweeps() {
  const gates = useLabelled("sweep-part=gate");
  const runs = useLabelled("sweep-part=run");
  const error = gates.error ?? runs.error;
  if (!gates.value || !runs.value) return <ErrorNote error={error} />;
  const sweeps = sweepsOf(gates.value.items, runs.value.items, runs.value.next !== null);
  return (
    <Card title="Sweeps">
      <ErrorNote error={error} />
      {sweeps.length === 0 ? (
        <Empty>
          No sweep yet. One tries a program with many settings:{" "}
          <code>gpuyard sweep train.py --param lr=log:1e-4..1e-1 --trials 20 --metric loss</code>
        </Empty>
      ) : (
        <GroupTable what="Sweep" of="Runs" lines={sweeps} draw={drawSweep} />
      )}
    </Card>
  );
}

function drawSweep(sweep: SweepLine) {
  return {
    key: sweep.id,
    link: <Link to={`/sweeps/${sweep.id}`}>{sweep.name}</Link>,
    badge: <SweepBadge state={sweep.state} />,
  };
}

export function SweepBadge({ state }: { state: string }) {
  const tones: Record<string, Tone> = { open: "busy", completed: "good", failed: "bad" };
  return <Badge tone={tones[state] ?? "plain"}>{state === "open" ? "goes on" : state}</Badge>;
}

function Flows() {
  const jobs = useLabelled("flow-part=step");
  if (!jobs.value) return <Found of={jobs} />;
  const flows = flowsOf(jobs.value.items);
  return (
    <Card title="Flows">
      <Found of={jobs} />
      {flows.length === 0 ? (
        <Empty>
          No flow yet. One runs steps that need one another: <code>gpuyard flow run flow.toml</code>
        </Empty>
      ) : (
        <GroupTable what="Flow" of="Steps" lines={flows} draw={drawFlow} />
      )}
    </Card>
  );
}

function drawFlow(flow: FlowLine) {
  const { name, place } = flow;
  return {
    key: `${place} ${name}`,
    link: <Link to={address("/sweeps/flow", { name, place })}>{name}</Link>,
    badge: <StateBadge state={flowState(flow)} />,
  };
}

/** The state of the step that matters most. */
export function flowState(flow: FlowLine): string {
  const order = ["running", "assigned", "queued", "failed", "timed_out", "cancelled", "unknown"];
  return order.find((state) => flow.counts[state]) ?? "completed";
}

interface GroupLine {
  user: string | null;
  createdAt: number;
  counts: Counts | null;
}

interface Drawn {
  key: string;
  link: preact.JSX.Element;
  badge: preact.JSX.Element;
}

function GroupTable<T extends GroupLine>(props: {
  what: string;
  of: string;
  lines: T[];
  draw: (line: T) => Drawn;
}) {
  const now = useNow();
  return (
    <div class="scrolls" role="region" aria-label={`${props.what}s`} tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th>{props.what}</th>
            <th>State</th>
            <th>{props.of}</th>
            <th>User</th>
            <th class="number">Begun</th>
          </tr>
        </thead>
        <tbody>
          {props.lines.map((line) => {
            const { key, link, badge } = props.draw(line);
            return (
              <tr key={key}>
                <td>{link}</td>
                <td>{badge}</td>
                <td>{wordsOf(line.counts)}</td>
                <td>{line.user ?? "owner"}</td>
                <td class="number quiet">{format.ago(line.createdAt, now)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
