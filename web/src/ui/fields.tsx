// What people fill in.

import type { ComponentChildren, VNode } from "preact";
import { useId, useState } from "preact/hooks";

interface FieldProps {
  label: string;
  value: string;
  type?: string;
  required?: boolean;
  min?: number;
  max?: number;
  hint?: string;
  /** The id of a <datalist>: what it suggests. */
  list?: string;
  /** What is wrong with it. A form that says so of its fields gives an empty text where nothing
   * is, so that the field stays the same element when that changes. */
  fault?: string;
  onInput: (value: string) => void;
}

interface Marks {
  "aria-invalid"?: boolean;
  "aria-describedby"?: string;
}

/** A field with what is wrong with it below. */
function Faulty(props: { fault: string | undefined; children: (marks: Marks) => VNode }) {
  const id = useId();
  const { fault, children } = props;
  if (fault === undefined) return children({});
  return (
    <div class="field">
      {children(fault ? { "aria-invalid": true, "aria-describedby": id } : {})}
      <FaultNote id={id} fault={fault} />
    </div>
  );
}

/** What is wrong with what is above; nothing if that is empty. */
export function FaultNote({ id, fault }: { id: string; fault: string }) {
  if (!fault) return null;
  return (
    <p id={id} class="small problem">
      {fault}
    </p>
  );
}

export function Field({ label, value, type, hint, fault, onInput, ...others }: FieldProps) {
  return (
    <Faulty fault={fault}>
      {(marks) => (
        <label class="field">
          <span>{label}</span>
          <input
            type={type ?? "text"}
            value={value}
            // What is typed there is of no sign-in here.
            autocomplete={type === "password" ? "new-password" : undefined}
            placeholder={hint}
            // Figures such as 0.5 GB are fine.
            step={type === "number" ? "any" : undefined}
            onInput={(event) => onInput(event.currentTarget.value)}
            {...others}
            {...marks}
          />
        </label>
      )}
    </Faulty>
  );
}

export function TextField({ rows, mono, ...field }: FieldProps & { rows: number; mono?: boolean }) {
  return (
    <Faulty fault={field.fault}>
      {(marks) => (
        <label class="field">
          <span>{field.label}</span>
          <textarea
            class={mono ? "mono" : undefined}
            rows={rows}
            spellcheck={false}
            value={field.value}
            required={field.required}
            placeholder={field.hint}
            onInput={(event) => field.onInput(event.currentTarget.value)}
            {...marks}
          />
        </label>
      )}
    </Faulty>
  );
}

export function Choice(props: {
  label: string;
  value: string;
  options: readonly (readonly [value: string, name: string])[];
  required?: boolean;
  fault?: string;
  onChoose: (value: string) => void;
}) {
  return (
    <Faulty fault={props.fault}>
      {(marks) => (
        <label class="field">
          <span>{props.label}</span>
          <select
            value={props.value}
            required={props.required}
            onChange={(event) => props.onChoose(event.currentTarget.value)}
            {...marks}
          >
            {props.options.map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </select>
        </label>
      )}
    </Faulty>
  );
}

/** A button that lets somebody choose files of their computer. */
export function FileButton(props: {
  children: ComponentChildren;
  folder?: boolean;
  onChoose: (files: File[]) => void;
}) {
  return (
    <label class="button file">
      {props.children}
      <input
        type="file"
        multiple
        class="hidden-text"
        // It has no name of its own in the types.
        ref={(input) => void input?.toggleAttribute("webkitdirectory", props.folder ?? false)}
        onChange={(event) => {
          const input = event.currentTarget;
          props.onChoose([...(input.files ?? [])]);
          // So that the same file can be chosen again.
          input.value = "";
        }}
      />
    </label>
  );
}

/** A command to take into a terminal. */
export function CommandToCopy({ text }: { text: string }) {
  return (
    <div class="stack">
      <pre class="sunken wraps">{text}</pre>
      <div>
        <CopyButton text={text} />
      </div>
    </div>
  );
}

const SAYS_SO_MS = 2000;

/** Brings a text to the clipboard. Over plain HTTP, browsers offer none, and it is not there. */
export function CopyButton({ text, kind = "" }: { text: string; kind?: "" | "primary" }) {
  const [said, setSaid] = useState("Copy");
  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("The browser refuses it");
    }
    setTimeout(() => setSaid("Copy"), SAYS_SO_MS);
  }
  if (!window.isSecureContext) return null;
  return (
    <button type="button" class={`button ${kind}`} onClick={() => void copy()}>
      {said}
    </button>
  );
}
