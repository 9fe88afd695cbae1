// Secrets: what jobs refer to by name. Nobody sees a value again, not even who has set it.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { me } from "../state/rights";
import { session } from "../state/session";
import { Field } from "../ui/fields";
import { FormDialog, Tick } from "../ui/forms";
import { Card, Empty, Found } from "../ui/parts";

type Secret = Schemas["SecretFacts"];

export function SecretsTab() {
  const found = useResource<{ items: Secret[] }>("/api/v1/secrets", {}, { everyS: 30 });
  const [isSetting, setSetting] = useState(false);
  const [removed, setRemoved] = useState<Secret | null>(null);
  const items = found.value?.items ?? [];
  return (
    <Card
      title="Secrets"
      action={
        session.may("member") && (
          <button type="button" class="button primary" onClick={() => setSetting(true)}>
            Set a secret
          </button>
        )
      }
    >
      <Found of={found} />
      {found.value && items.length === 0 && (
        <Empty>
          There is no secret. A job gets those that it names: <code>--secret NAME</code>.
        </Empty>
      )}
      {items.length > 0 && <SecretTable secrets={items} onRemove={setRemoved} />}
      {isSetting && <SetSecret onClose={() => setSetting(false)} onDone={found.reload} />}
      {removed && (
        <RemoveSecret secret={removed} onClose={() => setRemoved(null)} onDone={found.reload} />
      )}
    </Card>
  );
}

/** Only the store's can be removed: by whose they are, and by maintainers. */
function mayRemove({ owner, source }: Secret): boolean {
  const isOwn = (owner ?? null) === me() && session.may("member");
  return source === "store" && (isOwn || session.may("maintainer"));
}

function SecretTable(props: { secrets: Secret[]; onRemove: (secret: Secret) => void }) {
  const now = useNow();
  return (
    <div class="scrolls" role="region" aria-label="Secrets" tabIndex={0}>
      <table class="middle">
        <thead>
          <tr>
            <th>Name</th>
            <th>Whose</th>
            <th>Comes from</th>
            <th>Set</th>
            <th>Last used</th>
            <th>Change</th>
          </tr>
        </thead>
        <tbody>
          {props.secrets.map((secret) => (
            <tr key={`${secret.owner} ${secret.name}`}>
              <td class="mono">{secret.name}</td>
              <td>{secret.owner ?? "shared"}</td>
              <td>{secret.source}</td>
              <td class="quiet">{format.ago(secret.set_at, now)}</td>
              <td class="quiet">{secret.used_at ? format.ago(secret.used_at, now) : "never"}</td>
              <td>
                {mayRemove(secret) ? (
                  <button
                    type="button"
                    class="button danger"
                    onClick={() => props.onRemove(secret)}
                  >
                    Remove<span class="hidden-text"> {secret.name}</span>
                  </button>
                ) : (
                  "–"
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface DialogProps {
  onClose: () => void;
  onDone: () => void;
}

function SetSecret({ onClose, onDone }: DialogProps) {
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const [isShared, setShared] = useState(false);
  async function set(): Promise<void> {
    const path = `/api/v1/secrets/${encodeURIComponent(name.trim())}`;
    await send("PUT", path, { value, shared: isShared });
    onDone();
  }
  return (
    <FormDialog title="Set a secret" verb="Set" act={set} onClose={onClose}>
      <p class="quiet">One of this name gets the new value; jobs get it when they start.</p>
      <Field label="Name, such as HF_TOKEN" required value={name} onInput={setName} />
      <Field label="Value" type="password" required value={value} onInput={setValue} />
      {/* Those of the owner of the instance are shared anyway. */}
      {session.may("maintainer") && me() !== null && (
        <Tick label="Shared: the jobs of all get it" checked={isShared} onChange={setShared} />
      )}
    </FormDialog>
  );
}

function RemoveSecret({ secret, onClose, onDone }: DialogProps & { secret: Secret }) {
  async function remove(): Promise<void> {
    const whose = secret.owner ? { owner: secret.owner } : { shared: "true" };
    const words = new URLSearchParams(whose);
    await send("DELETE", `/api/v1/secrets/${encodeURIComponent(secret.name)}?${words}`);
    onDone();
  }
  return (
    <FormDialog
      title={`Remove the secret ${secret.name}?`}
      verb="Remove it"
      kind="danger"
      act={remove}
      onClose={onClose}
    >
      <p>Jobs that name it no longer start. Those that run keep it.</p>
    </FormDialog>
  );
}
