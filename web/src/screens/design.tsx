// Every component in each of its looks, to be looked at together.

import { Chart } from "../charts/chart";
import { Field } from "../ui/fields";
import { Folded } from "../ui/folded";
import { ActionButton, Badge, Card, Empty, ErrorNote, Meter, StateBadge } from "../ui/parts";

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
const XS = Array.from({ length: 200 }, (_, at) => at);
const CURVES = [1, 2, 3, 4].map((number) => ({
  name: `curve ${number}`,
  values: XS.map((x) => number + 2 * Math.exp(-x / (30 * number))),
}));
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
          <Folded title="What few people need" isWrong={false}>
            <Field label="Folded away" value="" onInput={() => undefined} />
          </Folded>
        </Card>
        <Card title="Curves">
          <Chart xs={XS} curves={CURVES} label="Four curves" />
        </Card>
      </div>
    </>
  );
}
