// Batches: one script over many items.

import { useState } from "preact/hooks";

import { send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useAnswer } from "../state/answer";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { mayChange, maySubmit } from "../state/rights";
import { go } from "../state/router";
import { session } from "../state/session";
import { useTitle } from "../state/title";
import { Choice, Field, TextField } from "../ui/fields";
import { Form } from "../ui/forms";
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
import { Windowed } from "../ui/window";

/** See `GET /api/v1/batches`. */
interface BatchSummary {
  batch_id: string;
  script: string;
  project: string | null;
  user: string | null;
  source: string;
  results: string;
  state: string;
  problem: string | null;
  gpu_mode: string;
  total_items: number;
  completed: number;
  failed: number;
  counts: Record<string, number>;
  workers: number;
  eta_s: number | null;
  created_at: number;
  began_at: number | null;
  ended_at: number | null;
}

interface BatchItem {
  number: number;
  video_path: string;
  state: string;
  attempts: number;
  seconds: number | null;
  reason: string | null;
}

interface Batch extends BatchSummary {
  items: BatchItem[];
}

const OVER = new Set(["completed", "failed", "cancelled"]);
const LINE_HEIGHT = 40;
const isAboutBatches = (event: ServerEvent) => event.kind.startsWith("batch.");

export default function BatchesScreen({ words }: { words: string[] }) {
  const [id] = words;
  return id ? <BatchScreen id={id} /> : <BatchList />;
}

function BatchList() {
  const batches = useResource<{ items: BatchSummary[] }>(
    "/api/v1/batches",
    {},
    { isWatched: true },
  );
  const [isNew, setNew] = useState(false);
  const now = useNow();
  return (
    <>
      <div class="head">
        <h1>Batches</h1>
        <span class="spring" />
        {session.may("member") && !isNew && (
          <button type="button" class="button primary" onClick={() => setNew(true)}>
            Submit a batch
          </button>
        )}
      </div>
      <Found of={batches} />
      {isNew && <NewBatch onClose={() => setNew(false)} />}
      {batches.value?.items.length === 0 && <Empty>There has been no batch yet.</Empty>}
      {Boolean(batches.value?.items.length) && (
        <div class="card scrolls" tabIndex={0} role="group" aria-label="Batches">
          <table>
            <thead>
              <tr>
                <th class="named">Batch</th>
                <th>State</th>
                <th class="bar">Done</th>
                <th class="number">Failed</th>
                <th class="number">Left</th>
                <th class="number">Submitted</th>
              </tr>
            </thead>
            <tbody>
              {batches.value!.items.map((batch) => (
                <tr key={batch.batch_id}>
                  <td>
                    <Link to={`/batches/${batch.batch_id}`}>{batch.script}</Link>
                    <span class="quiet small block cut">{batch.source}</span>
                  </td>
                  <td>
                    <StateBadge state={batch.state} />
                  </td>
                  <td class="bar">
                    <Done batch={batch} />
                  </td>
                  <td class="number">{format.count(batch.failed)}</td>
                  <td class="number">
                    {OVER.has(batch.state) ? "" : format.duration(batch.eta_s)}
                  </td>
                  <td class="number quiet">{format.ago(batch.created_at, now)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Done({ batch }: { batch: BatchSummary }) {
  return (
    <span class="stack tight">
      <Meter share={batch.completed / Math.max(batch.total_items, 1)} label="Items done" />
      <span class="quiet small">
        {format.count(batch.completed)} of {format.count(batch.total_items)}
      </span>
    </span>
  );
}

// --- one batch ---

function BatchScreen({ id }: { id: string }) {
  const found = useResource<Batch>(
    `/api/v1/batches/${id}`,
    {},
    { when: isAboutBatches, everyS: 5 },
  );
  const [error, setError] = useState<Error | null>(null);
  const [state, setState] = useState("");
  const batch = found.value;
  useTitle(batch?.script);
  if (batch === null) return <Found of={found} />;
  const post = (action: string) => async () => {
    await send("POST", `/api/v1/batches/${id}/${action}`, action === "retry" ? {} : undefined);
    found.reload();
  };
  const items = batch.items.filter((item) => !state || item.state === state);
  const isOver = OVER.has(batch.state);
  const hasRest = Boolean(batch.counts["failed"] || batch.counts["cancelled"]);
  const mayRetry = mayChange(batch) && maySubmit(batch.project);
  return (
    <>
      <div class="head">
        <h1 class="cut">{batch.script}</h1>
        <StateBadge state={batch.state} />
        <Badge>{batch.gpu_mode}</Badge>
        <span class="quiet mono small">{batch.batch_id}</span>
        <span class="spring" />
        {isOver && hasRest && mayRetry && (
          <ActionButton act={post("retry")} onError={setError}>
            Do the rest again
          </ActionButton>
        )}
        {!isOver && mayChange(batch) && (
          <ActionButton act={post("cancel")} kind="danger" onError={setError}>
            Cancel
          </ActionButton>
        )}
      </div>
      <ErrorNote error={error ?? found.error} />
      {batch.problem && <p class="warning">{batch.problem}</p>}
      <div class="columns top">
        <Card title="Progress">
          <Done batch={batch} />
          <dl class="facts">
            {Object.entries(batch.counts).map(([name, count]) => (
              <Fact key={name} name={name} value={format.count(count)} />
            ))}
            <Fact name="workers" value={format.count(batch.workers)} />
            {!isOver && <Fact name="left" value={format.duration(batch.eta_s)} />}
          </dl>
        </Card>
        <Card title="Where">
          <dl class="facts">
            <Fact name="from" value={batch.source} />
            <Fact name="results" value={batch.results} />
            <Fact name="submitted" value={format.time(batch.created_at)} />
            <Fact name="ended" value={format.time(batch.ended_at)} />
          </dl>
        </Card>
      </div>
      <div class="head">
        <h2>Items</h2>
        <select
          aria-label="State of the items"
          value={state}
          onChange={(event) => setState(event.currentTarget.value)}
        >
          <option value="">every state</option>
          {Object.keys(batch.counts).map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </div>
      <div class="list">
        {items.length === 0 && <Empty>No item is like that.</Empty>}
        <Windowed
          items={items}
          lineHeight={LINE_HEIGHT}
          class="body"
          label="Items"
          draw={(item) => <ItemLine key={item.number} item={item} />}
        />
      </div>
    </>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

function ItemLine({ item }: { item: BatchItem }) {
  return (
    <div class="line item" role="listitem">
      <span class="number quiet">{item.number}</span>
      <span class="cut" title={item.video_path}>
        {item.video_path}
      </span>
      <StateBadge state={item.state} />
      <span class="quiet cut less" title={item.reason ?? ""}>
        {item.reason ?? (item.attempts > 1 ? `${item.attempts} attempts` : "")}
      </span>
    </div>
  );
}

// --- a new batch ---

interface BatchForm {
  script: string;
  items: string;
  results: string;
  args: string;
  mode: string;
  project: string;
}

// Who closes the form finds what they typed when they open it again.
let draft: BatchForm = { script: "", items: "", results: "", args: "", mode: "", project: "" };

/** See `POST /api/v1/estimate/batch`. */
interface BatchEstimate {
  mode: string;
  total_s: number | null;
}

function NewBatch({ onClose }: { onClose: () => void }) {
  const [form, setForm] = useState(draft);
  const spec = specOf(form);
  const unread = linesOf(form.args).find((line) => !isArgument(line));
  const isWhole = Boolean(form.script && form.items.trim() && form.results && !unread);
  const estimate = useAnswer<BatchEstimate>("/api/v1/estimate/batch", isWhole ? spec : null);
  const change = (name: keyof BatchForm) => (value: string) => {
    draft = { ...form, [name]: value };
    setForm(draft);
  };

  async function submit(): Promise<void> {
    if (unread) throw new Error(`Arguments: ${unread} is not of the form NAME=VALUE.`);
    const made = await send<{ batch_id: string }>("POST", "/api/v1/batches", spec);
    draft = { ...draft, items: "" };
    go(`/batches/${made.batch_id}`);
  }

  return (
    <Form
      class="card narrow"
      label="A new batch"
      verb="Submit"
      act={submit}
      beside={
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      }
    >
      <div class="fields">
        <Field
          label="Script, as the settings name it"
          required
          value={form.script}
          onInput={change("script")}
        />
        <Choice
          label="Models meanwhile"
          value={form.mode}
          options={[
            ["", "as the number of items says"],
            ["shared", "stay"],
            ["exclusive", "leave the GPUs"],
          ]}
          onChoose={change("mode")}
        />
        <Field label="Project" value={form.project} onInput={change("project")} />
      </div>
      <TextField
        label="Arguments of the script: NAME=VALUE, one a line"
        rows={2}
        mono
        value={form.args}
        onInput={change("args")}
      />
      {unread && <p class="warning">Arguments: {unread} is not of the form NAME=VALUE.</p>}
      <TextField
        label="Items: paths on the server's machine, one a line"
        rows={5}
        mono
        required
        value={form.items}
        onInput={change("items")}
      />
      <Field
        label="Folder for the results, from the root on"
        hint="/data/results"
        required
        value={form.results}
        onInput={change("results")}
      />
      {isWhole && <ErrorNote error={estimate.error} />}
      {isWhole && estimate.value && <Forecast estimate={estimate.value} />}
    </Form>
  );
}

function Forecast({ estimate }: { estimate: BatchEstimate }) {
  const { mode, total_s: totalS } = estimate;
  if (totalS === null) return <p class="quiet">No GPU here could run it now.</p>;
  return (
    <p class="quiet">
      It would take {format.duration(totalS)} from now on, {mode}.
    </p>
  );
}

function linesOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

function isArgument(line: string): boolean {
  return line.indexOf("=") > 0;
}

function argumentOf(line: string): [name: string, value: unknown] {
  const at = line.indexOf("=");
  return [line.slice(0, at).trim(), valueOf(line.slice(at + 1).trim())];
}

/** JSON where it is any, else the text, as in `gpuyard batch submit --arg`. */
function valueOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function specOf(form: BatchForm): Record<string, unknown> {
  const paths = linesOf(form.items);
  const [first = ""] = paths;
  const args = linesOf(form.args).filter(isArgument).map(argumentOf);
  return {
    script: form.script.trim(),
    items: paths.map((path) => ({ path })),
    source: paths.length === 1 ? first : `${first} and ${paths.length - 1} more`,
    results: form.results.trim(),
    args: Object.fromEntries(args),
    ...(form.mode ? { mode: form.mode } : {}),
    ...(form.project ? { project: form.project } : {}),
  };
}
