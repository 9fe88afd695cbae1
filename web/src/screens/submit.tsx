// A new job: what to run, and what it needs.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { go } from "../state/router";
import { ActionButton, ErrorNote } from "../ui/parts";

interface Form {
  name: string;
  command: string;
  workdir: string;
  gpus: string;
  memoryGb: string;
  priority: string;
}

const EMPTY: Form = { name: "", command: "", workdir: "", gpus: "1", memoryGb: "", priority: "3" };

export default function SubmitScreen() {
  const [form, setForm] = useState(EMPTY);
  const [error, setError] = useState<Error | null>(null);
  const change = (name: keyof Form) => (value: string) => setForm({ ...form, [name]: value });

  async function submit(): Promise<void> {
    const job = await send<{ id: string }>("POST", "/api/v1/jobs", specOf(form));
    go(`/jobs/${job.id}`);
  }

  return (
    <>
      <div class="head">
        <h1>Submit a job</h1>
      </div>
      <form class="card narrow" onSubmit={(event) => event.preventDefault()}>
        <label class="field">
          <span>Command, as you would type it in a shell</span>
          <textarea
            class="mono"
            rows={4}
            required
            value={form.command}
            onInput={(event) => change("command")(event.currentTarget.value)}
          />
        </label>
        <Field
          label="Folder on the server's machine in which it runs"
          value={form.workdir}
          onInput={change("workdir")}
        />
        <Field label="Name" value={form.name} onInput={change("name")} />
        <div class="row">
          <Field label="GPUs" type="number" value={form.gpus} onInput={change("gpus")} />
          <Field
            label="Memory of each GPU, GB"
            type="number"
            value={form.memoryGb}
            onInput={change("memoryGb")}
          />
          <Field
            label="Priority, 1 to 5"
            type="number"
            value={form.priority}
            onInput={change("priority")}
          />
        </div>
        <p class="quiet">The same from a terminal:</p>
        <pre class="sunken scrolls">{commandOf(form)}</pre>
        <ErrorNote error={error} />
        <div>
          <ActionButton act={submit} kind="primary" onError={setError}>
            Submit
          </ActionButton>
        </div>
      </form>
    </>
  );
}

interface FieldProps {
  label: string;
  value: string;
  type?: string;
  onInput: (value: string) => void;
}

function Field({ label, value, type, onInput }: FieldProps) {
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type={type ?? "text"}
        value={value}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    </label>
  );
}

function specOf(form: Form): Partial<Schemas["JobSpec"]> {
  const gpus = {
    count: Number(form.gpus),
    ...(form.memoryGb ? { memory_gb: Number(form.memoryGb) } : {}),
  };
  return {
    command: ["sh", "-c", form.command],
    priority: Number(form.priority),
    resources: { gpus },
    ...(form.name ? { name: form.name } : {}),
    ...(form.workdir ? { workdir: form.workdir } : {}),
  } as Partial<Schemas["JobSpec"]>;
}

/** The command that does the same. */
function commandOf(form: Form): string {
  const words = ["gpuyard run --detach", `--gpus ${form.gpus || 0}`];
  if (form.memoryGb) words.push(`--gpu-memory ${form.memoryGb}`);
  if (form.name) words.push(`--name ${quoted(form.name)}`);
  if (form.priority !== "3") words.push(`--priority ${form.priority}`);
  return `${words.join(" ")} -- sh -c ${quoted(form.command)}`;
}

function quoted(word: string): string {
  return /^[\w./=-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
