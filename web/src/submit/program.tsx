// The program of a new job: pasted, chosen from this computer, or a template.

import { useRef, useState } from "preact/hooks";

import { get } from "../api/client";
import { useResource } from "../state/resource";
import { Choice, FileButton } from "../ui/fields";
import { ErrorNote } from "../ui/parts";
import { type Files, isEmpty, NO_FILES } from "./carrier";
import { type Form, formOf, startOf } from "./form";
import { FromGit } from "./from-git";
import type { Spec } from "./values";

// A spec may have a million bytes, and in base64 files are a third larger.
const MOST_BYTES = 700_000;
const PASTED = "train.py";
/** What files are of that somebody has changed. */
const OF_NOTHING = { template: "", commit: "", commitFolder: "" };

interface Template {
  name: string;
  spec: Spec;
  files: Record<string, string>;
  binary: Record<string, string>;
}

export function ProgramFields({ form, onForm }: { form: Form; onForm: (form: Form) => void }) {
  const [error, setError] = useState<Error | null>(null);
  const [shown, setShown] = useState(PASTED);
  // What was chosen last: an answer to an earlier choice may come after it.
  const wanted = useRef("");
  const names = Object.keys(form.files.text);
  const name = names.includes(shown) ? shown : (entryOf(form.command, names) ?? PASTED);

  function change(files: Files): void {
    const command = form.command || startOf(Object.keys(files.text));
    onForm({ ...form, ...OF_NOTHING, files, command });
  }

  function write(text: string): void {
    const { [name]: _, ...others } = form.files.text;
    change({
      ...form.files,
      text: text || names.length > 1 ? { ...form.files.text, [name]: text } : others,
    });
  }

  async function choose(chosen: File[]): Promise<void> {
    setError(null);
    try {
      change(added(form.files, await read(chosen)));
    } catch (fault) {
      setError(fault as Error);
    }
  }

  async function take(template: string): Promise<void> {
    setError(null);
    wanted.current = template;
    try {
      const taken = template
        ? await formOfTemplate(template)
        : { ...form, ...OF_NOTHING, files: NO_FILES };
      if (wanted.current === template) onForm(taken);
    } catch (fault) {
      if (wanted.current === template) setError(fault as Error);
    }
  }

  return (
    <>
      <div class="row wrap end">
        <Templates chosen={form.template} onChoose={(template) => void take(template)} />
        <FileButton onChoose={(files) => void choose(files)}>Choose files</FileButton>
        <FromGit onForm={onForm} />
        {!isEmpty(form.files) && (
          <button
            type="button"
            class="button"
            onClick={() => onForm({ ...form, ...OF_NOTHING, files: NO_FILES })}
          >
            Leave the files out
          </button>
        )}
      </div>
      <ErrorNote error={error} />
      {form.commit && (
        <p class="quiet small breaks">
          Of {form.commit}
          {form.commitFolder && `, ${form.commitFolder}`}
        </p>
      )}
      <div class="field">
        {names.length > 1 && (
          <select
            aria-label="File"
            value={name}
            onChange={(event) => setShown(event.currentTarget.value)}
          >
            {names.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        )}
        <label class="field">
          <span>
            {names.length > 0
              ? `Code of ${name}`
              : "Code; or leave it empty, and give only a command"}
          </span>
          <textarea
            class="mono code"
            rows={names.length > 0 ? 14 : 6}
            spellcheck={false}
            value={form.files.text[name] ?? ""}
            onInput={(event) => write(event.currentTarget.value)}
          />
        </label>
        {Object.keys(form.files.base64).length > 0 && (
          <span class="quiet small">and {Object.keys(form.files.base64).join(", ")}</span>
        )}
      </div>
    </>
  );
}

function Templates(props: { chosen: string; onChoose: (template: string) => void }) {
  const found = useResource<{ items: { name: string; description: string }[] }>(
    "/api/v1/templates",
  );
  const templates = found.value?.items ?? [];
  return (
    <Choice
      label="Template"
      value={props.chosen}
      options={[
        ["", "none"],
        ...templates.map(({ name, description }) => [name, description] as const),
      ]}
      onChoose={props.onChoose}
    />
  );
}

async function formOfTemplate(name: string): Promise<Form> {
  const found = await get<Template>(`/api/v1/templates/${name}`);
  const files = { text: found.files, base64: found.binary };
  return { ...formOf(found.spec), files, template: name };
}

function entryOf(command: string, names: readonly string[]): string | undefined {
  return names.find((name) => command.split(/\s+/).includes(name)) ?? names[0];
}

function added(before: Files, more: Files): Files {
  const files = {
    text: { ...before.text, ...more.text },
    base64: { ...before.base64, ...more.base64 },
  };
  const size = JSON.stringify(files).length;
  if (size > MOST_BYTES) {
    const megabytes = (size / 1e6).toFixed(1);
    throw new Error(
      `The files have ${megabytes} MB; 0.7 MB can go with a job. Put data into a dataset.`,
    );
  }
  return files;
}

async function read(files: readonly File[]): Promise<Files> {
  const large = files.find((file) => file.size > MOST_BYTES);
  if (large) {
    throw new Error(`${large.name} is too large to go with a job. Put data into a dataset.`);
  }
  const read: Files = { text: {}, base64: {} };
  for (const file of files) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    try {
      read.text[file.name] = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      const letters = Array.from(bytes, (byte) => String.fromCharCode(byte));
      read.base64[file.name] = btoa(letters.join(""));
    }
  }
  return read;
}
