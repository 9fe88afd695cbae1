// What can be changed of a job that was submitted: whether it is held, its name, its priority
// and its times.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { mayChange, maySubmit } from "../state/rights";
import { useTyped } from "../state/typed";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { ActionButton } from "../ui/parts";
import { changesOf, resumedWith, shownOf } from "./changed";

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
  const [isResuming, setResuming] = useState(false);
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
      {isOver && maySubmit(job.project) && (
        <button type="button" class="button" onClick={() => setResuming(true)}>
          Resume with …
        </button>
      )}
      <button type="button" class="button" onClick={() => setChanging(true)}>
        {isOver ? "Rename" : "Change"}
      </button>
      {isResuming && <ResumeJob job={job} onClose={() => setResuming(false)} onDone={onChange} />}
      {isChanging && (
        <ChangeJob job={job} isOver={isOver} onClose={() => setChanging(false)} onDone={onChange} />
      )}
    </>
  );
}

function ChangeJob(props: { job: Job; isOver: boolean; onClose: () => void; onDone: () => void }) {
  const { job, isOver } = props;
  const [before] = useState(() => shownOf(job));
  const { typed, bound } = useTyped(before);
  async function change(): Promise<void> {
    await send("PATCH", `/api/v1/jobs/${job.id}`, changesOf(before, typed));
    props.onDone();
  }
  return (
    <FormDialog title="Change the job" verb="Change" act={change} onClose={props.onClose}>
      <Field label="Its name" required {...bound("name")} />
      {!isOver && (
        <Field
          label="Priority, from 1 to 5 (urgent)"
          type="number"
          min={1}
          max={5}
          required
          {...bound("priority")}
        />
      )}
      {job.state === "queued" && <Field label="End it after" hint="2h" {...bound("timeout")} />}
      {!isOver && (
        <Field label="Done by (empty: no matter when)" hint="8h" {...bound("deadline")} />
      )}
    </FormDialog>
  );
}

const SAME = { timeout: "", deadline: "", gpus: "", priority: "" };

function ResumeJob(props: { job: Job; onClose: () => void; onDone: () => void }) {
  const { typed, bound } = useTyped(SAME);
  async function resume(): Promise<void> {
    await send("POST", `/api/v1/jobs/${props.job.id}/resume`, resumedWith(typed));
    props.onDone();
  }
  return (
    <FormDialog title="Resume the job" verb="Resume it" act={resume} onClose={props.onClose}>
      <p class="quiet">It goes on from its newest checkpoint. What is empty stays as it was.</p>
      <Field label="End it after" hint="2h" {...bound("timeout")} />
      <Field label="Done by" hint="8h" {...bound("deadline")} />
      <Field label="GPUs" hint="2, or A100:8" {...bound("gpus")} />
      <Field
        label="Priority, from 1 to 5 (urgent)"
        type="number"
        min={1}
        max={5}
        {...bound("priority")}
      />
    </FormDialog>
  );
}
