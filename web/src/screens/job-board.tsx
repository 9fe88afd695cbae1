// Opens TensorBoard over the event files of a job, in a tab of its own.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import { ActionButton, ErrorNote } from "../ui/parts";
import { openTab } from "./link-tab";

const LOGGED = "tensorboard/";

/** A button, if the job has written event files and the server has a port for tools.
 * TensorBoard starts within seconds. */
export function OpenBoard({ job }: { job: Schemas["Job"] }) {
  const [error, setError] = useState<Error | null>(null);
  const names = Object.keys(job.progress.metrics ?? {});
  const hasLogged = names.some((name) => name.startsWith(LOGGED));
  const isOffered = hasLogged && session.may("member");
  const server = useResource<{ opens_ports: boolean }>(isOffered ? "/api/v1/server" : null);
  if (!isOffered || !server.value?.opens_ports) return null;
  const body = { jobs: [job.id] };
  const open = () =>
    openTab(() => send<Schemas["BoardLink"]>("POST", "/api/v1/tensorboards", body));
  return (
    <>
      <ActionButton act={open} onError={setError}>
        TensorBoard
      </ActionButton>
      <ErrorNote error={error} />
    </>
  );
}
