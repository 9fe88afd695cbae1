// The GPUs of a job, by the names that the overview gives them.

import { useResource } from "../state/resource";

/** See `GET /api/v1/gpus`. */
interface Gpu {
  uuid: string;
  node: string;
  index: number;
}

/** How many GPUs a job has, and which. One that is not of a machine of ours has its UUID
 * alone. */
export function JobGpus({ uuids }: { uuids: readonly string[] }) {
  const gpus = useResource<{ items: Gpu[] }>(uuids.length > 0 ? "/api/v1/gpus" : null);
  const nameOf = (uuid: string) => {
    const gpu = gpus.value?.items.find((one) => one.uuid === uuid);
    return gpu ? `${gpu.node} · ${gpu.index}` : uuid;
  };
  if (uuids.length === 0) return <span class="quiet small">no GPU</span>;
  return (
    <span class="quiet small cut" title={uuids.join(", ")}>
      {uuids.length === 1 ? "GPU" : `${uuids.length} GPUs`}: {uuids.map(nameOf).join(", ")}
    </span>
  );
}
