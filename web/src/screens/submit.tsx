// A new job: what to run, what that needs and costs, and the same from a terminal.

import { useEffect, useState } from "preact/hooks";

import { get, type Schemas, send } from "../api/client";
import * as format from "../format";
import { useAnswer } from "../state/answer";
import { go, usePlace } from "../state/router";
import { session } from "../state/session";
import {
  EMPTY,
  type Form,
  formOf,
  programOf,
  scheduleOf,
  type Spec,
  specOf,
  terminalCommand,
} from "../submit/form";
import { ProgramFields } from "../submit/program";
import { type Recommendation, RecommendationCard } from "../submit/recommendation";
import { SizesCard, useSizes } from "../submit/sizes";
import { Choice, CommandToCopy, Field, TextField } from "../ui/fields";
import { ActionButton, Card, ErrorNote } from "../ui/parts";

// Who looks at another screen finds what they typed when they come back.
let draft = EMPTY;

export default function SubmitScreen() {
  const { query } = usePlace();
  const [form, setForm] = useState(draft);
  const [hours, setHours] = useState("1");
  const [error, setError] = useState<Error | null>(null);
  const source = query.get("from");
  const program = programOf(form);
  const recommended = useAnswer<Recommendation>("/api/v1/recommendations", program);
  const needs = program ? recommended.value?.program_needs : undefined;
  const spec = form.command.trim() ? specOf(form, needs) : null;
  const sizes = useSizes();

  function change(next: Form): void {
    draft = next;
    setForm(next);
  }

  useEffect(() => {
    if (source) formOfJob(source).then(change, setError);
  }, [source]);

  async function submit(): Promise<void> {
    const wanted = specOf(form, needs);
    if (form.times.trim()) {
      await send("POST", "/api/v1/schedules", scheduleOf(form, wanted));
      draft = EMPTY;
      go("/schedules");
      return;
    }
    const job = await send<{ id: string }>("POST", "/api/v1/jobs", wanted);
    draft = EMPTY;
    go(`/jobs/${job.id}`);
  }

  function use({ needs: needed, needed_gb: neededGb }: Recommendation): void {
    const memoryGb = needed?.gpu_memory_gb ?? neededGb;
    const gpus = needed?.gpus ?? 0;
    change({
      ...form,
      tier: "",
      gpus: String(gpus),
      memoryGb: gpus && memoryGb ? String(Math.ceil(memoryGb)) : "",
    });
  }

  return (
    <>
      <div class="head">
        <h1>Submit a job</h1>
        {source && <span class="quiet">A copy of {format.shortId(source)}, to be changed</span>}
      </div>
      <div class="columns top unequal">
        {/* No <form>: Enter in one of its many fields is not meant to start a job, and it has forms
            of its own. */}
        <div class="card" role="form" aria-label="The job">
          <ProgramFields form={form} onForm={change} />
          <JobFields
            form={form}
            onForm={change}
            sizes={(sizes.value?.items ?? []).map(({ id }) => id)}
          />
          <ErrorNote error={error} />
          <div class="row">
            {session.may("member") ? (
              <ActionButton act={submit} kind="primary" onError={setError}>
                Submit
              </ActionButton>
            ) : (
              <span class="quiet">Viewers submit nothing; ask an administrator for a role.</span>
            )}
            <button type="button" class="button" onClick={() => change(EMPTY)}>
              Clear
            </button>
          </div>
        </div>
        <div class="stack spaced">
          {program && <RecommendationCard answer={recommended} onUse={use} />}
          <SizesCard
            sizes={sizes.value?.items ?? []}
            error={sizes.error}
            found={program ? recommended.value : null}
            chosen={form.tier}
            hours={hours}
            onHours={setHours}
            onChoose={(tier) => change({ ...form, tier })}
          />
          <Places spec={spec} />
          <Card title="The same from a terminal">
            <CommandToCopy text={terminalCommand(form)} />
          </Card>
        </div>
      </div>
    </>
  );
}

async function formOfJob(reference: string): Promise<Form> {
  const job = await get<Schemas["Job"]>(`/api/v1/jobs/${reference}`);
  return formOf(job.spec as unknown as Spec);
}

function JobFields({
  form,
  onForm,
  sizes,
}: {
  form: Form;
  onForm: (form: Form) => void;
  sizes: readonly string[];
}) {
  const change = (name: keyof Form) => (value: string) => onForm({ ...form, [name]: value });
  const field = (name: keyof Form, label: string, more: { type?: string; hint?: string } = {}) => (
    <Field label={label} value={form[name] as string} onInput={change(name)} {...more} />
  );
  const number = { type: "number" };
  const kept = Object.entries(form.rest).filter(([, value]) => Object.keys(value as object).length);
  return (
    <>
      <TextField
        label="Command, as you would type it in a shell"
        rows={2}
        mono
        hint="python3 train.py --epochs 3"
        value={form.command}
        onInput={change("command")}
      />
      {field("name", "Name")}
      <div class="fields short">
        <Choice
          label="Size"
          value={form.tier}
          options={[["", "custom"], ...sizes.map((id) => [id, id] as const)]}
          onChoose={change("tier")}
        />
        {!form.tier && field("gpus", "GPUs", number)}
        {!form.tier && field("memoryGb", "GPU memory", { ...number, hint: "GB" })}
        {field("priority", "Priority (1–5)", number)}
      </div>
      <details>
        <summary>More: limits, times, environment, checkpoints, data</summary>
        <div class="stack">
          <div class="fields">
            {field("cpus", "CPU cores", number)}
            {field("ramGb", "Memory, GB", number)}
            {field("timeout", "End it after", { hint: "2h" })}
            {field("project", "Project")}
            {field("times", "Again at these times, as in cron", { hint: "0 3 * * *" })}
          </div>
          <TextField
            label="Environment variables, one a line"
            hint="OMP_NUM_THREADS=1"
            rows={2}
            mono
            value={form.environment}
            onInput={change("environment")}
          />
          <div class="fields">
            {field("checkpoint", "Checkpoints, a pattern", { hint: "out/*.pt" })}
            {field("resumeArgs", "To resume, it gets", { hint: "--resume {path}" })}
            {field("artifacts", "Files to keep, patterns", { hint: "out/*" })}
          </div>
          <div class="fields">
            {field("dataset", "Datasets")}
            {field("workspace", "Workspace")}
            {field("workdir", "Folder of the server in which it runs")}
          </div>
        </div>
      </details>
      {kept.length > 0 && (
        <p class="quiet small">
          It keeps what is not shown here:{" "}
          {kept.map(([name]) => name.replaceAll("_", " ")).join(", ")}.
        </p>
      )}
    </>
  );
}

/** See `POST /api/v1/estimate`. */
interface Estimate {
  run_s: number;
  basis: string;
  ahead: number;
  in_the_way: string;
  currency: string;
  items: PlaceRow[];
}

interface PlaceRow {
  name: string;
  suits: boolean;
  reasons: string[];
  wait_s: number | null;
  cost: number | null;
}

const MOST_PLACES = 5;

/** Where the job could run, when, and for how much. */
function Places({ spec }: { spec: Spec | null }) {
  const { value, error } = useAnswer<Estimate>("/api/v1/estimate", spec);
  if (spec === null) return null;
  return (
    <Card title="Where and when">
      <ErrorNote error={error} />
      {value && (
        <>
          <div class="scrolls">
            <table>
              <thead>
                <tr>
                  <th>Place</th>
                  <th class="number">Waits</th>
                  <th class="number">Cost</th>
                </tr>
              </thead>
              <tbody>
                {value.items.slice(0, MOST_PLACES).map((place) => (
                  <tr key={place.name}>
                    <td>
                      {place.name}
                      {!place.suits && (
                        <span class="quiet small block">{place.reasons.join("; ")}</span>
                      )}
                    </td>
                    <td class="number">{place.suits ? format.duration(place.wait_s) : "–"}</td>
                    <td class="number">
                      {place.suits && place.cost !== null
                        ? format.money(String(place.cost), value.currency)
                        : "–"}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="quiet small">
            For {format.duration(value.run_s)}: {value.basis}.
            {value.ahead > 0 && ` ${value.ahead} jobs come before it.`} {value.in_the_way}
          </p>
        </>
      )}
    </Card>
  );
}
