// What a new job is called, needs and gets. What few jobs need is folded away.

import { session } from "../state/session";
import { Choice, Field, TextField } from "../ui/fields";
import { Folded } from "../ui/folded";
import { bound, type Editing, isFilled, isWrong, type TextName } from "./editing";
import { SecretFields } from "./secrets";
import { WHEN, WhenFields } from "./when";

const NUMBER = { type: "number" };
const LIMITS = [
  ...(["cpus", "ramGb", "timeout", "project", "environment", "checkpoint"] as const),
  ...(["resumeArgs", "artifacts", "dataset", "workspace", "workdir"] as const),
];
const KEPT = ["labels", "notify", "withheld", "secrets"] as const;

export function JobFields({ sizes, ...editing }: Editing & { sizes: readonly string[] }) {
  const { form } = editing;
  const { onInput: onTier, ...tier } = bound(editing, "tier");
  const mayHaveSecrets = session.may("member");
  return (
    <>
      <TextField
        label="Command, as you would type it in a shell"
        rows={2}
        mono
        hint="python3 train.py --epochs 3"
        {...bound(editing, "command")}
      />
      <Field label="Name" {...bound(editing, "name")} />
      <div class="fields short">
        <Choice
          label="Size"
          options={[["", "custom"], ...sizes.map((id) => [id, id] as const)]}
          onChoose={onTier}
          {...tier}
        />
        {!form.tier && <Field label="GPUs" {...NUMBER} {...bound(editing, "gpus")} />}
        {!form.tier && (
          <Field label="GPU memory" {...NUMBER} hint="GB" {...bound(editing, "memoryGb")} />
        )}
        <Field label="Priority (1–5)" {...NUMBER} {...bound(editing, "priority")} />
      </div>
      <Folded
        title="More: limits, environment, checkpoints, data"
        isWrong={isWrong(editing, LIMITS)}
      >
        <LimitFields {...editing} />
      </Folded>
      <Folded
        title="When: arrays, other jobs, deadline, times"
        opens={isFilled(editing, WHEN)}
        isWrong={isWrong(editing, WHEN)}
      >
        <WhenFields {...editing} />
      </Folded>
      <Folded
        title={mayHaveSecrets ? "Labels, notices, secrets" : "Labels, notices"}
        opens={isFilled(editing, KEPT)}
        isWrong={isWrong(editing, KEPT)}
      >
        <div class="stack">
          <LabelFields {...editing} />
          {mayHaveSecrets && <SecretFields {...editing} />}
        </div>
      </Folded>
      <NotShown {...editing} />
    </>
  );
}

function LimitFields(editing: Editing) {
  const field = (name: TextName, label: string, more: { type?: string; hint?: string } = {}) => (
    <Field label={label} {...more} {...bound(editing, name)} />
  );
  return (
    <div class="stack">
      <div class="fields">
        {field("cpus", "CPU cores", NUMBER)}
        {field("ramGb", "Memory, GB", NUMBER)}
        {field("timeout", "End it after", { hint: "2h" })}
        {field("project", "Project")}
      </div>
      <TextField
        label="Environment variables, one a line"
        hint="OMP_NUM_THREADS=1"
        rows={2}
        mono
        {...bound(editing, "environment")}
      />
      <div class="fields">
        {field("checkpoint", "Checkpoints, a pattern", { hint: "out/*.pt" })}
        {field("resumeArgs", "To resume, it gets", { hint: "--resume {path}" })}
        {field("artifacts", "Files to keep, patterns", { hint: "out/*" })}
      </div>
      <div class="fields">
        {field("dataset", "Datasets")}
        {field("workspace", "Workspace")}
        {field("workdir", "Folder of the server in which it runs")}
      </div>
    </div>
  );
}

function LabelFields(editing: Editing) {
  const { withheld } = editing.form;
  return (
    <>
      <TextField
        label="Labels, one a line"
        hint="team=vision"
        rows={2}
        mono
        {...bound(editing, "labels")}
      />
      <TextField
        label="Whom to tell when it has ended, one address a line"
        hint={"mail:ana@example.org\nslack:https://hooks.example.org/…"}
        rows={2}
        mono
        {...bound(editing, "notify")}
      />
      {withheld.length > 0 && (
        <p class="quiet small breaks">
          The copied job told {withheld.join(", ")}. Nobody sees these addresses again: type them
          anew.
        </p>
      )}
    </>
  );
}

/** What a copied job has besides. */
function NotShown({ form }: Editing) {
  const kept = Object.entries(form.rest).filter(
    ([, value]) => typeof value !== "object" || Object.keys(value as object).length > 0,
  );
  if (kept.length === 0) return null;
  return (
    <p class="quiet small">
      It keeps what is not shown here: {kept.map(([name]) => name.replaceAll("_", " ")).join(", ")}.
    </p>
  );
}
