// How many GPUs a job has, and which.

import { useGpuNames } from "../state/gpu-names";

export function JobGpus({ uuids }: { uuids: readonly string[] }) {
  const nameOf = useGpuNames(uuids);
  if (uuids.length === 0) return <span class="quiet small">no GPU</span>;
  return (
    <span class="quiet small cut" title={uuids.join(", ")}>
      {uuids.length === 1 ? "GPU" : `${uuids.length} GPUs`}: {uuids.map(nameOf).join(", ")}
    </span>
  );
}
