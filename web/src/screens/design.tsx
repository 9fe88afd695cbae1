// Every component in each of its looks, to be looked at together.

import { useState } from "preact/hooks";

import { Choice, CommandToCopy, Field, TextField } from "../ui/fields";
import { Folded } from "../ui/folded";
import { FormDialog, Tick } from "../ui/forms";
import {
  ActionButton,
  Badge,
  Card,
  Empty,
  ErrorNote,
  Loading,
  Meter,
  StateBadge,
  Tabs,
} from "../ui/parts";
import { Drawings } from "./design-drawings";

const STATES = [
  "queued",
  "assigned",
  "running",
  "completed",
  "failed",
  "cancelled",
  "timed_out",
  "unknown",
];
const VIEWS = ["day", "week", "month"] as const;
const wait = () => new Promise((resolve) => setTimeout(resolve, 1000));

export default function DesignScreen() {
  return (
    <>
      <h1>Components</h1>
      <div class="columns">
        <Card title="States">
          <div class="row wrap">
            {STATES.map((state) => (
              <StateBadge key={state} state={state} />
            ))}
            <Badge tone="warn">warning</Badge>
          </div>
        </Card>
        <Card title="Buttons">
          <div class="row wrap">
            <ActionButton act={wait}>Plain</ActionButton>
            <ActionButton act={wait} kind="primary">
              Primary
            </ActionButton>
            <ActionButton act={wait} kind="danger">
              Danger
            </ActionButton>
            <button type="button" class="button" disabled>
              Disabled
            </button>
          </div>
        </Card>
        <Card title="Meters">
          <Meter share={0.3} label="Progress" />
          <Meter share={0.8} label="Memory" quiet />
        </Card>
        <Card title="What goes wrong">
          <ErrorNote error={new Error("gpus.count is 0, and must be at least 1.")} />
          <Empty>Nothing is here yet.</Empty>
        </Card>
        <Card title="Fields">
          <Field label="Right" value="2" fault="" onInput={() => undefined} />
          <Field
            label="Wrong"
            value="0"
            fault="is 0 (must be at least 1)"
            onInput={() => undefined}
          />
          <Choice
            label="One of three"
            value="day"
            options={VIEWS.map((view) => [view, view] as const)}
            onChoose={() => undefined}
          />
          <TextField label="Lines" value="import torch" rows={3} mono onInput={() => undefined} />
          <Ticked />
          <Folded title="What few people need" isWrong={false}>
            <Field label="Folded away" value="" onInput={() => undefined} />
          </Folded>
        </Card>
        <div class="stack spaced">
          <Card title="Tabs">
            <Views />
          </Card>
          <Card title="A command to copy">
            <CommandToCopy text="gpuyard run --gpus 1 train.py" />
          </Card>
          <Card title="A dialog">
            <Asking />
          </Card>
          <Card title="What is on its way">
            <Loading />
          </Card>
        </div>
        <Drawings />
      </div>
    </>
  );
}

function Ticked() {
  const [isTicked, setTicked] = useState(true);
  return <Tick label="To be ticked" checked={isTicked} onChange={setTicked} />;
}

function Views() {
  const [view, setView] = useState<(typeof VIEWS)[number]>("day");
  return <Tabs label="Views" names={VIEWS} chosen={view} onChoose={setView} />;
}

function Asking() {
  const [isOpen, setOpen] = useState(false);
  return (
    <div>
      <button type="button" class="button" onClick={() => setOpen(true)}>
        Open it
      </button>
      {isOpen && (
        <FormDialog title="A dialog" verb="Do it" act={wait} onClose={() => setOpen(false)}>
          <p>It holds the keyboard until it is closed.</p>
        </FormDialog>
      )}
    </div>
  );
}
