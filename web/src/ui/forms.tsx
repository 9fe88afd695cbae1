// Forms, on the page and over it.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Dialog, ErrorNote, useAction } from "./parts";

export function Tick(props: {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
}) {
  return (
    <label class="row">
      <input
        type="checkbox"
        checked={props.checked}
        onChange={(event) => props.onChange(event.currentTarget.checked)}
      />
      {props.label}
    </label>
  );
}

interface FormProps {
  /** What its button does, in a word. */
  verb: string;
  kind?: "primary" | "danger";
  act: () => Promise<unknown>;
  children?: ComponentChildren;
}

/** Fields with a button; Enter in a field does the same. The browser names a required field
 * that is empty, and goes there. What was typed stays when `act` fails. */
export function Form(
  props: FormProps & {
    class?: string;
    label?: string;
    /** What stands beside the button. */
    beside?: ComponentChildren;
  },
) {
  const [error, setError] = useState<Error | null>(null);
  const { isBusy, begin } = useAction(props.act, setError);
  return (
    <form
      class={props.class ?? "stack"}
      aria-label={props.label}
      onSubmit={(event) => {
        event.preventDefault();
        begin();
      }}
    >
      {props.children}
      <ErrorNote error={error} />
      <div class="row">
        <button class={`button ${props.kind ?? "primary"}`} aria-disabled={isBusy}>
          {props.verb}
        </button>
        {props.beside}
      </div>
    </form>
  );
}

/** A form over the page. It is closed when `act` has done what it was for. */
export function FormDialog(props: FormProps & { title: string; onClose: () => void }) {
  async function act(): Promise<void> {
    await props.act();
    props.onClose();
  }
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <Form
        verb={props.verb}
        kind={props.kind ?? "primary"}
        act={act}
        beside={<Close {...props} />}
      >
        {props.children}
      </Form>
    </Dialog>
  );
}

function Close({ onClose }: { onClose: () => void }) {
  return (
    <button type="button" class="button" onClick={onClose}>
      Close
    </button>
  );
}
