// What a new job is called, needs and gets. What few jobs need is folded away.

import { session } from "../state/session";
import { Choice, Field, TextField } from "../ui/fields";
import { Folded } from "../ui/folded";
import { bound, type Editing, isFilled, isWrong } from "./editing";
import { KEPT, KeptFields } from "./kept";
import { SecretFields } from "./secrets";
import { TRIES, TryFields } from "./tries";
import { WHEN, WhenFields } from "./when";
import { WHERE, WhereFields } from "./where";

const NUMBER = { type: "number" };
const FOUND = ["project", "labels", "notify", "withheld", "secrets"] as const;

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
        title="Where: image, provider, machines, price"
        opens={isFilled(editing, WHERE)}
        isWrong={isWrong(editing, WHERE)}
      >
        <WhereFields {...editing} />
      </Folded>
      <Folded
        title="Limits, tries, variables"
        opens={isFilled(editing, TRIES)}
        isWrong={isWrong(editing, TRIES)}
      >
        <TryFields {...editing} />
      </Folded>
      <Folded
        title="Checkpoints and files"
        opens={isFilled(editing, KEPT)}
        isWrong={isWrong(editing, KEPT)}
      >
        <KeptFields {...editing} />
      </Folded>
      <Folded
        title="When: arrays, other jobs, deadline, times"
        opens={isFilled(editing, WHEN)}
        isWrong={isWrong(editing, WHEN)}
      >
        <WhenFields {...editing} />
      </Folded>
      <Folded
        title={mayHaveSecrets ? "Project, labels, notices, secrets" : "Project, labels, notices"}
        opens={isFilled(editing, FOUND)}
        isWrong={isWrong(editing, FOUND)}
      >
        <div class="stack">
          <Field label="Project" {...bound(editing, "project")} />
          <LabelFields {...editing} />
          {mayHaveSecrets && <SecretFields {...editing} />}
        </div>
      </Folded>
      <NotShown {...editing} />
    </>
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
