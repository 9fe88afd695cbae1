// Forms over the page.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { ActionButton, Dialog, ErrorNote } from "./parts";

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

/** A form over the page. It is closed when `act` has done what it was for. */
export function FormDialog(props: {
  title: string;
  verb: string;
  kind?: "primary" | "danger";
  act: () => Promise<unknown>;
  onClose: () => void;
  children?: ComponentChildren;
}) {
  const [error, setError] = useState<Error | null>(null);
  async function act(): Promise<void> {
    await props.act();
    props.onClose();
  }
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {props.children}
      <ErrorNote error={error} />
      <div class="row">
        <ActionButton act={act} kind={props.kind ?? "primary"} onError={setError}>
          {props.verb}
        </ActionButton>
        <button type="button" class="button" onClick={props.onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
