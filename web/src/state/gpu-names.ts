// GPUs by the names that the overview gives them, for who knows only their UUIDs.

import { useResource } from "./resource";

/** See `GET /api/v1/gpus`. */
interface Gpu {
  uuid: string;
  node: string;
  index: number;
}

/** Gives a GPU's machine and index; its UUID if it is on no machine of ours. Nothing is
 * asked until there are `uuids`. */
export function useGpuNames(uuids: readonly string[]): (uuid: string) => string {
  const gpus = useResource<{ items: Gpu[] }>(uuids.length > 0 ? "/api/v1/gpus" : null);
  return (uuid) => {
    const gpu = gpus.value?.items.find((one) => one.uuid === uuid);
    return gpu ? `${gpu.node} · ${gpu.index}` : uuid;
  };
}
