// Where a new job may run, and at what price.

import type { Schemas } from "../api/client";
import { useResource } from "../state/resource";
import { Choice, Field } from "../ui/fields";
import { Tick } from "../ui/forms";
import { bound, type Editing } from "./editing";
import { Suggested } from "./suggested";

/** See `GET /api/v1/providers`. */
interface Provider {
  name: string;
  rents: boolean;
}

/** See `GET /api/v1/offers`. */
interface Offered {
  gpu: string;
  region: string;
}

/** Which offer is best; without a word, what the settings of the server say. */
const STRATEGIES: readonly (readonly [Schemas["Strategy"] | "", string])[] = [
  ["", "as the server is set up"],
  ["cost", "the cheapest"],
  ["performance", "the fastest"],
  ["availability", "the surest to start soon"],
  ["balanced", "cheap and soon"],
];

/** The fields that these are of. */
export const WHERE = [
  ...(["image", "provider", "regions", "nodes", "gpuClass", "maxPrice"] as const),
  ...(["strategy", "spot", "quarantined"] as const),
];

export function WhereFields(editing: Editing) {
  const { form, onForm } = editing;
  const gpus = useResource<{ items: { gpu_class: string | null }[] }>("/api/v1/gpus");
  const offers = useResource<{ items: Offered[] }>("/api/v1/offers");
  const offered = offers.value?.items ?? [];
  const classes = (gpus.value?.items ?? []).map((gpu) => gpu.gpu_class ?? "");
  const { onInput: onStrategy, ...strategy } = bound(editing, "strategy");
  return (
    <div class="stack">
      <div class="fields pairs">
        <Suggested
          label="Container image"
          hint="auto: by its imports"
          options={["auto"]}
          {...bound(editing, "image")}
        />
        <ProviderField {...editing} />
        <Suggested
          label="Only in these regions"
          several
          options={offered.map(({ region }) => region)}
          {...bound(editing, "regions")}
        />
        <Field
          label="Machines at once"
          type="number"
          min={1}
          hint="1"
          {...bound(editing, "nodes")}
        />
        {!form.tier && (
          <Suggested
            label="GPU class"
            hint="A100"
            options={[...classes, ...offered.map(({ gpu }) => gpu)]}
            {...bound(editing, "gpuClass")}
          />
        )}
        <Field
          label="Highest price per hour"
          type="number"
          min={0}
          {...bound(editing, "maxPrice")}
        />
        <Choice
          label="Which offer is best"
          options={STRATEGIES}
          onChoose={onStrategy}
          {...strategy}
        />
      </div>
      {form.nodes.trim() && form.nodes.trim() !== "1" && (
        <p class="quiet small">All figures are those of each machine.</p>
      )}
      <Tick
        label="Use spot offers: they cost less, and may be taken back"
        checked={form.spot}
        onChange={(spot) => onForm({ ...form, spot })}
      />
      <Tick
        label="Also use places in quarantine"
        checked={form.quarantined}
        onChange={(quarantined) => onForm({ ...form, quarantined })}
      />
    </div>
  );
}

function ProviderField(editing: Editing) {
  const found = useResource<{ items: Provider[] }>("/api/v1/providers");
  const { onInput, ...provider } = bound(editing, "provider");
  const known = (found.value?.items ?? []).map(
    ({ name, rents }) => [name, rents ? `${name}, which rents machines` : name] as const,
  );
  const chosen = provider.value;
  // A copied job may name one that is there no more.
  const isKnown = !chosen || known.some(([name]) => name === chosen);
  return (
    <Choice
      label="Only on this provider"
      options={[["", "any"], ...(isKnown ? [] : [[chosen, chosen] as const]), ...known]}
      onChoose={onInput}
      {...provider}
    />
  );
}
