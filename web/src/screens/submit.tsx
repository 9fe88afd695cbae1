// A new job: what to run, what that needs and costs, and the same from a terminal.

import { useEffect, useRef, useState } from "preact/hooks";

import { get, Problem, type Schemas, send } from "../api/client";
import * as format from "../format";
import { useAnswer } from "../state/answer";
import { go, setQuery, usePlace } from "../state/router";
import { session } from "../state/session";
import { inWords, ownFaults, stillWrong } from "../submit/faults";
import { EMPTY, type Form, formOf, programOf, scheduleOf, specOf } from "../submit/form";
import { JobFields } from "../submit/job-fields";
import { listToStore } from "../submit/packages";
import { ProgramFields } from "../submit/program";
import { type Recommendation, RecommendationCard } from "../submit/recommendation";
import { SizesCard, useSizes } from "../submit/sizes";
import { terminalCommand } from "../submit/terminal";
import type { Spec } from "../submit/values";
import { CommandToCopy } from "../ui/fields";
import { ActionButton, Card, ErrorNote } from "../ui/parts";

// Who looks at another screen finds what they typed when they come back.
let draft = EMPTY;
/** The job or the array of which the draft is a copy; empty for none. */
let copied = "";

/** Why the form was refused, and what stood in it then. */
interface Refusal {
  error: Error;
  form: Form;
}

export default function SubmitScreen() {
  const { query } = usePlace();
  const [form, setForm] = useState(draft);
  const [hours, setHours] = useState("1");
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const fields = useRef<HTMLDivElement>(null);
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

  function clear(): void {
    copied = "";
    setRefusal(null);
    change(EMPTY);
  }

  function refuse(error: Error | null): void {
    setRefusal(error && { error, form });
  }

  useEffect(() => {
    if (!source) return;
    let isWanted = true;
    function take(found: Form): void {
      if (!isWanted) return;
      copied = source!;
      change(found);
      // Who comes back to this address finds what they made of it.
      setQuery({ from: "" });
    }
    formOfJob(source).then(take, refuse);
    return () => {
      isWanted = false;
    };
  }, [source]);

  async function submit(): Promise<void> {
    if (!hasOnlyFigures(fields.current!)) return;
    const address = await submitted(form, specOf(form, needs));
    clear();
    go(address);
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
        {copied && <span class="quiet">A copy of {format.shortId(copied)}, to be changed</span>}
      </div>
      <div class="columns top unequal">
        {/* No <form>: Enter in one of its many fields is not meant to start a job, and it has forms
            of its own. */}
        <div ref={fields} class="card" role="form" aria-label="The job">
          <ProgramFields form={form} onForm={change} />
          <JobFields
            form={form}
            faults={refusal ? stillWrong(faultsOf(refusal.error), refusal.form, form) : {}}
            onForm={change}
            sizes={(sizes.value?.items ?? []).map(({ id }) => id)}
          />
          <ErrorNote error={refusal && refusal.error} />
          <div class="row">
            {session.may("member") ? (
              <ActionButton act={submit} kind="primary" onError={refuse}>
                Submit
              </ActionButton>
            ) : (
              <span class="quiet">Viewers submit nothing; ask an administrator for a role.</span>
            )}
            <button type="button" class="button" onClick={clear}>
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

/** Whether each field of a figure holds one; if not, the browser goes there and says so. It
 * gives out as empty what is none, such as 1-2. */
function hasOnlyFigures(form: HTMLElement): boolean {
  const wrong = [...form.querySelectorAll("input")].find(({ validity }) => validity.badInput);
  return wrong?.reportValidity() ?? true;
}

async function formOfJob(reference: string): Promise<Form> {
  if (reference.startsWith("array_")) {
    const array = await get<Schemas["Array"]>(`/api/v1/arrays/${reference}`);
    const limit = array.at_most ? `%${array.at_most}` : "";
    return formOf({ ...array.spec, array: array.tasks + limit });
  }
  const job = await get<Schemas["Job"]>(`/api/v1/jobs/${reference}`);
  return formOf(job.spec as unknown as Spec);
}

/** Submits a job, an array or a schedule; returns the address of the screen that shows it. */
async function submitted(form: Form, described: Spec): Promise<string> {
  const faults = ownFaults(form);
  if (faults.length > 0) {
    const detail = faults.map((fault) => inWords(fault.field, fault)).join("; ");
    throw new Problem(422, "invalid_input", detail, null, faults);
  }
  const spec = { ...described, ...(await storedPackages(form)) };
  if (form.times.trim()) {
    await send("POST", "/api/v1/schedules", scheduleOf(form, spec));
    return "/schedules";
  }
  if (form.array.trim()) {
    const array = await send<Schemas["Array"]>("POST", "/api/v1/arrays", spec);
    return `/jobs?array=${array.id}`;
  }
  const job = await send<Schemas["Job"]>("POST", "/api/v1/jobs", spec);
  return `/jobs/${job.id}`;
}

/** The field of the packages that a file of the program names, which the server now has. */
async function storedPackages(form: Form): Promise<{ packages?: string }> {
  const list = listToStore(form);
  if (list === null) return {};
  const stored = await send<Schemas["StoredPackages"]>("POST", "/api/v1/packages", list);
  return { packages: stored.digest };
}

function faultsOf(error: Error): readonly Schemas["FieldFault"][] {
  return error instanceof Problem ? error.faults : [];
}

/** See `POST /api/v1/estimate`. */
interface Estimate {
  /** Of an array: how many there are like it. */
  tasks: number | null;
  run_s: number;
  basis: string;
  ahead: number;
  in_the_way: string;
  /** Whether it can be met, in words; empty without one. */
  deadline: string;
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
            {value.tasks !== null && `For each of ${format.count(value.tasks)} tasks. `}
            For {format.duration(value.run_s)}: {value.basis}.
            {value.ahead === 1 && " One job comes before it."}
            {value.ahead > 1 && ` ${value.ahead} jobs come before it.`} {value.in_the_way}{" "}
            {value.deadline}
          </p>
        </>
      )}
    </Card>
  );
}
