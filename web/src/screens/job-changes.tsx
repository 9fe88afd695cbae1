// What can be changed of a job that was submitted: whether it is held, its name and priority.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { mayChange, maySubmit } from "../state/rights";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { ActionButton } from "../ui/parts";

type Job = Schemas["Job"];

interface Props {
  job: Job;
  isOver: boolean;
  onChange: () => void;
  onError: (error: Error | null) => void;
}

/** Buttons, for whoever may change the job. */
export function JobChanges({ job, isOver, onChange, onError }: Props) {
  const [isChanging, setChanging] = useState(false);
  if (!mayChange(job)) return null;
  const hold = (action: "hold" | "release") => async () => {
    await send("POST", `/api/v1/jobs:${action}`, { jobs: [job.id] });
    onChange();
  };
  return (
    <>
      {job.state === "queued" && !job.held && (
        <ActionButton act={hold("hold")} onError={onError}>
          Hold
        </ActionButton>
      )}
      {job.state === "queued" && job.held && maySubmit(job.project) && (
        <ActionButton act={hold("release")} onError={onError}>
          Release
        </ActionButton>
      )}
      <button type="button" class="button" onClick={() => setChanging(true)}>
        {isOver ? "Rename" : "Change"}
      </button>
      {isChanging && (
        <ChangeJob job={job} isOver={isOver} onClose={() => setChanging(false)} onDone={onChange} />
      )}
    </>
  );
}

function ChangeJob(props: { job: Job; isOver: boolean; onClose: () => void; onDone: () => void }) {
  const { job, isOver } = props;
  const [name, setName] = useState(job.name || "");
  const [priority, setPriority] = useState(String(job.priority));
  async function change(): Promise<void> {
    await send("PATCH", `/api/v1/jobs/${job.id}`, {
      ...(name !== job.name && { name }),
      ...(priority !== String(job.priority) && { priority: Number(priority) }),
    });
    props.onDone();
  }
  return (
    <FormDialog title="Change the job" verb="Change" act={change} onClose={props.onClose}>
      <Field label="Its name" required value={name} onInput={setName} />
      {!isOver && (
        <Field
          label="Priority, from 1 to 5 (urgent)"
          type="number"
          min={1}
          max={5}
          required
          value={priority}
          onInput={setPriority}
        />
      )}
    </FormDialog>
  );
}
