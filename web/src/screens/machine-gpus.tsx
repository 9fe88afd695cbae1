// The GPUs of a machine, each of which can be kept from new work.

import { useState } from "preact/hooks";

import { send } from "../api/client";
import * as format from "../format";
import { session } from "../state/session";
import { ActionButton, Badge, ErrorNote } from "../ui/parts";

/** See `GET /api/v1/gpus`. */
export interface MachineGpu {
  uuid: string;
  node: string;
  index: number;
  name: string;
  memory_mb: number;
  draining: boolean;
  quarantine: string | null;
  warnings: string[];
}

/** So many are in sight without a click. */
const FEW = 8;

export function GpuLines(props: { gpus: readonly MachineGpu[]; onChange: () => void }) {
  const [error, setError] = useState<Error | null>(null);
  const act = (gpu: MachineGpu, action: string) => async () => {
    await send("POST", `/api/v1/gpus/${gpu.uuid}/${action}`);
    props.onChange();
  };
  if (props.gpus.length === 0) return null;
  return (
    <details open={props.gpus.length <= FEW}>
      <summary>GPUs</summary>
      <div class="stack">
        <ErrorNote error={error} />
        {props.gpus.map((gpu) => (
          <div key={gpu.uuid} class="stack tight">
            <div class="row wide wrap">
              <span class="cut">
                {gpu.index}: {gpu.name}, {format.memory(gpu.memory_mb)}
              </span>
              <span class="row">
                {gpu.quarantine && <Badge tone="bad">in quarantine</Badge>}
                {gpu.draining && <Badge tone="warn">takes no jobs</Badge>}
                {session.may("maintainer") && gpu.quarantine && (
                  <ActionButton act={act(gpu, "release")} onError={setError}>
                    Let it out
                  </ActionButton>
                )}
                {session.may("maintainer") && (
                  <ActionButton
                    act={act(gpu, gpu.draining ? "undrain" : "drain")}
                    onError={setError}
                  >
                    {gpu.draining ? "Take jobs again" : "Take no new jobs"}
                  </ActionButton>
                )}
              </span>
            </div>
            {[gpu.quarantine, ...gpu.warnings].filter(Boolean).map((said) => (
              <span key={said} class="quiet small">
                {said}
              </span>
            ))}
          </div>
        ))}
      </div>
    </details>
  );
}
