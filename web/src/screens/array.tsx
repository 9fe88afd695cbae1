// An array above the list of its tasks: how they go, and what can be done with all of them.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { wordsOf } from "../groups/jobs";
import { useResource } from "../state/resource";
import { mayChange, maySubmit } from "../state/rights";
import { session } from "../state/session";
import { useTyped } from "../state/typed";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { ActionButton, Found, Link } from "../ui/parts";
import { changesOf, shownOf } from "./changed";

type JobArray = Schemas["Array"];
const isAboutJobs = ({ kind }: ServerEvent) => /^(job|array)\./.test(kind);

export function ArrayHead({ id }: { id: string }) {
  const path = `/api/v1/arrays/${encodeURIComponent(id)}`;
  const found = useResource<JobArray>(path, {}, { when: isAboutJobs, pauseS: 5 });
  const [error, setError] = useState<Error | null>(null);
  const array = found.value;
  return (
    <>
      <span class="quiet">
        The tasks of {array?.name || format.shortId(id)}
        {array && `: ${wordsOf(array.counts ?? null)}`}
        {array?.cost && `; ${format.money(array.cost.amount, array.cost.currency)}`}
      </span>
      <Link to="/jobs">All jobs</Link>
      {session.may("member") && (
        <Link to={`/submit?from=${id}`} class="button">
          Clone and edit
        </Link>
      )}
      {array && <Actions array={array} onChange={found.reload} onError={setError} />}
      <Found of={{ value: array, error: error ?? found.error }} />
    </>
  );
}

interface ActionsProps {
  array: JobArray;
  onChange: () => void;
  onError: (error: Error | null) => void;
}

/** Buttons that mean all its tasks, for whoever may change them. */
function Actions({ array, onChange, onError }: ActionsProps) {
  const [isChanging, setChanging] = useState(false);
  if (!mayChange(array)) return null;
  const {
    completed = 0,
    failed = 0,
    cancelled = 0,
    timed_out: late = 0,
    queued = 0,
  } = countsOf(array);
  const isOver = completed + failed + cancelled + late === array.total;
  const path = `/api/v1/arrays/${array.id}`;
  const act = (where: string, body?: object) => async () => {
    await send("POST", where, body);
    onChange();
  };
  const hold = (action: "hold" | "release") => act(`/api/v1/jobs:${action}`, { jobs: [array.id] });
  return (
    <span class="row wrap" role="group" aria-label="With all tasks">
      {queued > 0 && (
        <ActionButton act={hold("hold")} onError={onError}>
          Hold
        </ActionButton>
      )}
      {queued > 0 && maySubmit(array.project) && (
        <ActionButton act={hold("release")} onError={onError}>
          Release
        </ActionButton>
      )}
      {failed + cancelled + late > 0 && maySubmit(array.project) && (
        <ActionButton act={act(`${path}/resume`)} onError={onError}>
          Resume what did not complete
        </ActionButton>
      )}
      {!isOver && (
        <>
          <button type="button" class="button" onClick={() => setChanging(true)}>
            Change
          </button>
          <ActionButton act={act(`${path}/cancel`)} kind="danger" onError={onError}>
            Cancel the array
          </ActionButton>
        </>
      )}
      {isChanging && (
        <ChangeArray array={array} onClose={() => setChanging(false)} onDone={onChange} />
      )}
    </span>
  );
}

function countsOf({ counts }: JobArray): Record<string, number> {
  return counts ?? {};
}

function ChangeArray(props: { array: JobArray; onClose: () => void; onDone: () => void }) {
  const { array } = props;
  const [before] = useState(() => shownOf({ ...array, deadline: deadlineOf(array) }));
  const { typed, bound } = useTyped(before);
  async function change(): Promise<void> {
    await send("PATCH", `/api/v1/arrays/${array.id}`, changesOf(before, typed));
    props.onDone();
  }
  return (
    <FormDialog title="Change the array" verb="Change" act={change} onClose={props.onClose}>
      <Field
        label="So many tasks at once (empty: any number)"
        type="number"
        min={1}
        {...bound("atMost")}
      />
      <Field
        label="Priority, from 1 to 5 (urgent)"
        type="number"
        min={1}
        max={5}
        required
        {...bound("priority")}
      />
      <Field label="Done by (empty: no matter when)" hint="8h" {...bound("deadline")} />
    </FormDialog>
  );
}

function deadlineOf({ spec }: JobArray): number | null {
  const deadline = spec?.["deadline"];
  return typeof deadline === "number" ? deadline : null;
}
