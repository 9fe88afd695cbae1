// How a new job saves what it has done, what is kept of it, and what it finds.

import type { Schemas } from "../api/client";
import { useResource } from "../state/resource";
import { Choice, Field } from "../ui/fields";
import { Tick } from "../ui/forms";
import { bound, type Editing } from "./editing";
import { isStored, listsAmong } from "./packages";
import { Suggested } from "./suggested";

const SIGNALS = ["USR1", "USR2", "TERM"];

/** The fields that these are of. */
export const KEPT = [
  ...(["checkpoint", "resumeArgs", "signal", "grace", "artifacts", "artifactsAlways"] as const),
  ...(["dataset", "workspace", "packages", "workdir"] as const),
];

export function KeptFields(editing: Editing) {
  const { form, onForm } = editing;
  return (
    <div class="stack">
      <div class="fields pairs">
        <Field label="Checkpoints, a pattern" hint="out/*.pt" {...bound(editing, "checkpoint")} />
        <Field
          label="To resume, it gets"
          hint="--resume {path}"
          {...bound(editing, "resumeArgs")}
        />
        <Suggested
          label="Signal that makes it save"
          hint="USR1"
          options={SIGNALS}
          {...bound(editing, "signal")}
        />
        <Field label="Time that it has to save" hint="30s" {...bound(editing, "grace")} />
        <Field label="Files to keep, patterns" hint="out/*" {...bound(editing, "artifacts")} />
        <DatasetField {...editing} />
        <WorkspaceField {...editing} />
        <PackagesField {...editing} />
        <Field label="Its folder on the server" {...bound(editing, "workdir")} />
      </div>
      <Tick
        label="Keep these files also if it does not complete"
        checked={form.artifactsAlways}
        onChange={(artifactsAlways) => onForm({ ...form, artifactsAlways })}
      />
    </div>
  );
}

function DatasetField(editing: Editing) {
  const found = useResource<{ items: Schemas["Dataset"][] }>("/api/v1/datasets");
  const names = (found.value?.items ?? []).map(({ project, name }) => `${project}/${name}`);
  return <Suggested label="Datasets" several options={names} {...bound(editing, "dataset")} />;
}

function WorkspaceField(editing: Editing) {
  const found = useResource<{ items: { project: string; name: string }[] }>("/api/v1/workspaces");
  const { project } = editing.form;
  const usable = (found.value?.items ?? []).filter((one) => !project || one.project === project);
  return (
    <Suggested
      label="Workspace"
      options={usable.map(({ name }) => name)}
      {...bound(editing, "workspace")}
    />
  );
}

function PackagesField(editing: Editing) {
  const { onInput, ...packages } = bound(editing, "packages");
  const chosen = packages.value;
  const files = listsAmong(editing.form.files);
  const others = chosen && !files.includes(chosen) ? [chosen] : [];
  const nameOf = (one: string) => (isStored(one) ? "those of the copied job" : one);
  return (
    <Choice
      label="Packages, listed in"
      options={[["", "none"], ...[...others, ...files].map((one) => [one, nameOf(one)] as const)]}
      onChoose={onInput}
      {...packages}
    />
  );
}
