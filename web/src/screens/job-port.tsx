// Opens what a running job serves at a port, such as TensorBoard, in a tab of its own.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { useResource } from "../state/resource";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { openTab } from "./link-tab";

const USUAL = "6006";

export function OpenPort({ job }: { job: string }) {
  const [isOpen, setOpen] = useState(false);
  const [port, setPort] = useState(USUAL);
  const server = useResource<{ opens_ports: boolean }>("/api/v1/server");
  async function open(): Promise<void> {
    const path = `/api/v1/jobs/${job}/forward/${encodeURIComponent(port)}/links`;
    await openTab(() => send<Schemas["ToolLink"]>("POST", path));
  }
  if (!server.value?.opens_ports) return null;
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
          <Field
            label="Port"
            type="number"
            min={1}
            max={65535}
            required
            value={port}
            onInput={setPort}
          />
          <p class="quiet small">
            TensorBoard of gpuyard listens at {USUAL}. The tab is at an address of the job's own,
            and signed in for it alone.
          </p>
        </FormDialog>
      )}
    </>
  );
}
