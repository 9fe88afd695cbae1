// The machines of this instance: what they have, what is in use, and taking them out.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import { ActionButton, Badge, Dialog, Empty, ErrorNote, Meter, type Tone } from "../ui/parts";

interface Machine {
  id: string;
  name: string;
  provider: string;
  state: string;
  reason: string | null;
  cpus: number;
  memory_gb: number;
  gpus: number;
  seen_at: number;
  version: string;
  cordoned: boolean;
  joined: boolean;
  booked: { cpus: number; memory_gb: number; gpus: number };
  disk: { total_bytes: number; free_bytes: number } | null;
}

const isAboutMachines = (event: ServerEvent) => /^(node|attempt)\./.test(event.kind);

export default function MachinesScreen() {
  const machines = useResource<{ items: Machine[] }>(
    "/api/v1/nodes",
    {},
    { when: isAboutMachines, everyS: 10 },
  );
  const [isInviting, setInviting] = useState(false);
  return (
    <>
      <div class="head">
        <h1>Machines</h1>
        <span class="spring" />
        {session.may("administrator") && (
          <button type="button" class="button primary" onClick={() => setInviting(true)}>
            Add a machine
          </button>
        )}
      </div>
      <ErrorNote error={machines.error} />
      {machines.value?.items.length === 0 && <Empty>No machine is known yet.</Empty>}
      <div class="columns">
        {machines.value?.items.map((machine) => (
          <MachineCard key={machine.id} machine={machine} onChange={machines.reload} />
        ))}
      </div>
      {isInviting && <Invite onClose={() => setInviting(false)} />}
    </>
  );
}

function toneOf(machine: Machine): Tone {
  if (machine.state !== "online") return "bad";
  return machine.cordoned ? "warn" : "good";
}

function MachineCard({ machine, onChange }: { machine: Machine; onChange: () => void }) {
  const now = useNow();
  const [error, setError] = useState<Error | null>(null);
  const act = (action: string) => async () => {
    await send("POST", `/api/v1/nodes/${machine.id}/${action}`);
    onChange();
  };
  const { booked, disk } = machine;
  return (
    <article class="card" aria-label={machine.name}>
      <div class="row wide">
        <strong class="cut">{machine.name}</strong>
        <Badge tone={toneOf(machine)}>{machine.cordoned ? "takes no jobs" : machine.state}</Badge>
      </div>
      {machine.reason && <p class="quiet">{machine.reason}</p>}
      <Use name="GPUs" used={booked.gpus} all={machine.gpus} />
      <Use name="CPUs" used={booked.cpus} all={machine.cpus} />
      <Use name="Memory, GB" used={booked.memory_gb} all={machine.memory_gb} />
      {disk && (
        <Use
          name="Disk, GB"
          used={(disk.total_bytes - disk.free_bytes) / 1e9}
          all={disk.total_bytes / 1e9}
        />
      )}
      <p class="quiet small">
        {machine.provider}, version {machine.version}, seen {format.ago(machine.seen_at, now)}
      </p>
      <ErrorNote error={error} />
      {session.may("maintainer") && (
        <div class="row">
          <ActionButton act={act(machine.cordoned ? "uncordon" : "cordon")} onError={setError}>
            {machine.cordoned ? "Take jobs again" : "Take no new jobs"}
          </ActionButton>
          <ActionButton act={act("drain")} kind="danger" onError={setError}>
            Move its jobs away
          </ActionButton>
        </div>
      )}
    </article>
  );
}

function Use({ name, used, all }: { name: string; used: number; all: number }) {
  return (
    <div class="stack tight">
      <div class="row wide">
        <span>{name}</span>
        <span class="quiet">
          {format.figure(used)} of {format.figure(all)}
        </span>
      </div>
      <Meter share={all > 0 ? used / all : 0} label={`${name} in use`} />
    </div>
  );
}

/** Makes an invitation, and shows what to type on the other machine. */
function Invite({ onClose }: { onClose: () => void }) {
  const [made, setMade] = useState<Schemas["Invitation"] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  async function invite(): Promise<void> {
    setMade(await send<Schemas["Invitation"]>("POST", "/api/v1/nodes:invite", {}));
  }
  return (
    <Dialog title="Add a machine" onClose={onClose}>
      <ErrorNote error={error} />
      {made === null ? (
        <p>An invitation is good for one machine, for a short time.</p>
      ) : (
        <>
          <p>Type this on the machine, where gpuyard is installed:</p>
          <pre class="sunken scrolls">{`gpuyard join ${made.url} ${made.code}`}</pre>
          <p class="quiet">It is good until {format.time(made.expires_at)}.</p>
        </>
      )}
      <div class="row">
        {made === null && (
          <ActionButton act={invite} kind="primary" onError={setError}>
            Make an invitation
          </ActionButton>
        )}
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
