// Which secrets a new job gets. The page knows their names and no value.

import type { Schemas } from "../api/client";
import { useResource } from "../state/resource";
import { me } from "../state/rights";
import { Choice, Field } from "../ui/fields";
import { Lines } from "../ui/lines";
import { ErrorNote, Link } from "../ui/parts";
import type { Editing } from "./editing";
import { namesFor, NO_SECRET, type SecretUse, variableOf } from "./lists";

export function SecretFields({ form, faults, onForm }: Editing) {
  const found = useResource<{ items: Schemas["SecretFacts"][] }>("/api/v1/secrets");
  const names = namesFor(me(), found.value?.items ?? []);
  if (found.value && names.length === 0 && form.secrets.length === 0) {
    return (
      <p class="quiet small">
        There is no secret for its program yet. <Link to="/people?show=secrets">Set one</Link>; what
        you typed here stays.
      </p>
    );
  }
  return (
    <>
      <ErrorNote error={found.error} />
      <Lines<SecretUse>
        label="Secrets of its program"
        verb="Give it a secret"
        lines={form.secrets}
        blank={NO_SECRET}
        nameOf={variableOf}
        fault={faults.secrets ?? ""}
        draw={(use, change) => (
          <>
            <Choice
              label="Secret"
              value={use.name}
              options={optionsOf(names, use.name)}
              onChoose={(name) => change({ ...use, name })}
            />
            <Field
              label="In the variable"
              hint={use.name || "of its name"}
              value={use.variable}
              onInput={(variable) => change({ ...use, variable })}
            />
          </>
        )}
        onLines={(secrets) => onForm({ ...form, secrets })}
      />
    </>
  );
}

/** A copied job may name one that is not among them. */
function optionsOf(names: readonly string[], chosen: string): [string, string][] {
  const all = chosen && !names.includes(chosen) ? [chosen, ...names] : names;
  return [["", "choose one"], ...all.map((name): [string, string] => [name, name])];
}
