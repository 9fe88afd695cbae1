// The machines of this instance: what they have, what is in use, and taking them out.

import { useState } from "preact/hooks";

import { send } from "../api/client";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import {
  ActionButton,
  Badge,
  Dialog,
  Empty,
  ErrorNote,
  Found,
  Meter,
  type Tone,
} from "../ui/parts";
import { Invitations, Invite } from "./invitations";
import { GpuLines, type MachineGpu } from "./machine-gpus";

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

const WATCHED = { isWatched: true };

export default function MachinesScreen() {
  const machines = useResource<{ items: Machine[] }>("/api/v1/nodes", {}, WATCHED);
  const gpus = useResource<{ items: MachineGpu[] }>("/api/v1/gpus", {}, WATCHED);
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
      <Found of={machines} />
      {machines.value?.items.length === 0 && <Empty>No machine is known yet.</Empty>}
      <div class="columns">
        {machines.value?.items.map((machine) => (
          <MachineCard
            key={machine.id}
            machine={machine}
            gpus={(gpus.value?.items ?? []).filter(({ node }) => node === machine.name)}
            onChange={() => (machines.reload(), gpus.reload())}
          />
        ))}
      </div>
      {/* It asks anew when a dialog has closed. */}
      {session.may("administrator") && !isInviting && <Invitations />}
      {isInviting && <Invite onClose={() => setInviting(false)} />}
    </>
  );
}

function toneOf(machine: Machine): Tone {
  if (machine.state !== "online") return "bad";
  return machine.cordoned ? "warn" : "good";
}

function MachineCard({
  machine,
  gpus,
  onChange,
}: {
  machine: Machine;
  gpus: readonly MachineGpu[];
  onChange: () => void;
}) {
  const now = useNow();
  const [error, setError] = useState<Error | null>(null);
  const [isLeaving, setLeaving] = useState(false);
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
      <div class="meters">
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
      </div>
      <p class="quiet small">
        {machine.provider}, version {machine.version}
        {machine.state !== "online" && `, seen ${format.ago(machine.seen_at, now)}`}
      </p>
      <ErrorNote error={error} />
      {session.may("maintainer") && (
        <div class="row wrap">
          <ActionButton act={act(machine.cordoned ? "uncordon" : "cordon")} onError={setError}>
            {machine.cordoned ? "Take jobs again" : "Take no new jobs"}
          </ActionButton>
          <ActionButton act={act("drain")} kind="danger" onError={setError}>
            Move its jobs away
          </ActionButton>
          {machine.joined && session.may("administrator") && (
            <button type="button" class="button danger" onClick={() => setLeaving(true)}>
              Remove
            </button>
          )}
        </div>
      )}
      <GpuLines gpus={gpus} onChange={onChange} />
      {isLeaving && (
        <RemoveMachine machine={machine} onClose={() => setLeaving(false)} onRemoved={onChange} />
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
          {format.rough(used)} of {format.rough(all)}
        </span>
      </div>
      <Meter share={all > 0 ? used / all : 0} label={`${name} in use`} />
    </div>
  );
}

/** Asks back: what a machine ran is tried again elsewhere, or lost. */
function RemoveMachine(props: { machine: Machine; onClose: () => void; onRemoved: () => void }) {
  const { machine } = props;
  const [error, setError] = useState<Error | null>(null);
  async function remove(): Promise<void> {
    await send("DELETE", `/api/v1/nodes/${machine.id}`);
    props.onRemoved();
    props.onClose();
  }
  return (
    <Dialog title={`Remove ${machine.name}?`} onClose={props.onClose}>
      <p>
        It can join again only with a new invitation. Its jobs are tried again elsewhere, as often
        as their retries say.
      </p>
      <ErrorNote error={error} />
      <div class="row">
        <ActionButton act={remove} kind="danger" onError={setError}>
          Remove it
        </ActionButton>
        <button type="button" class="button" onClick={props.onClose}>
          Keep it
        </button>
      </div>
    </Dialog>
  );
}
