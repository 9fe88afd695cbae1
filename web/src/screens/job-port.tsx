// Opens what a running job serves at a port, such as TensorBoard, in a tab of its own.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { FormDialog } from "../ui/forms";
import { openTab } from "./link-tab";

const USUAL = "6006";

export function OpenPort({ job }: { job: string }) {
  const [isOpen, setOpen] = useState(false);
  const [port, setPort] = useState(USUAL);
  async function open(): Promise<void> {
    const path = `/api/v1/jobs/${job}/forward/${encodeURIComponent(port)}/links`;
    await openTab(() => send<Schemas["ToolLink"]>("POST", path));
  }
  return (
    <>
      <button type="button" class="button" onClick={() => setOpen(true)}>
        Open a port
      </button>
      {isOpen && (
        <FormDialog
          title="Open what the job serves"
          verb="Open"
          act={open}
          onClose={() => setOpen(false)}
        >
          <label class="field">
            Port
            <input
              type="number"
              min="1"
              max="65535"
              required
              value={port}
              onInput={(event) => setPort(event.currentTarget.value)}
            />
          </label>
          <p class="quiet small">
            TensorBoard of gpuyard listens at {USUAL}. The tab is at an address of the job's own,
            and signed in for it alone.
          </p>
        </FormDialog>
      )}
    </>
  );
}
