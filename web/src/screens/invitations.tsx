// Invitations for machines to join: how to make one, and which there are.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { CommandToCopy, Field } from "../ui/fields";
import { Form } from "../ui/forms";
import { ActionButton, Badge, Card, Dialog, ErrorNote, Found, type Tone } from "../ui/parts";

type Known = Schemas["KnownInvitation"];
const MOST = 20;
const TONES: Record<string, Tone> = { open: "busy", used: "good", over: "plain" };

/** The invitations, without their codes: those are shown once. */
export function Invitations() {
  const found = useResource<{ items: Known[] }>("/api/v1/invitations", {}, { everyS: 10 });
  const [error, setError] = useState<Error | null>(null);
  const items = (found.value?.items ?? []).slice(-MOST).reverse();
  async function revoke(id: string): Promise<void> {
    await send("DELETE", `/api/v1/invitations/${id}`);
    found.reload();
  }
  if (items.length === 0) return <Found of={found} />;
  return (
    <Card title="Invitations">
      <ErrorNote error={error ?? found.error} />
      <div class="scrolls" tabIndex={0} role="group" aria-label="Invitations">
        <table>
          <thead>
            <tr>
              <th class="named">Machine</th>
              <th>State</th>
              <th>Good until</th>
              <th>Used from</th>
              <th />
            </tr>
          </thead>
          <tbody>
            {items.map((one) => (
              <tr key={one.id}>
                <td>{one.name ?? "any"}</td>
                <td>
                  <Badge tone={TONES[one.state] ?? "plain"}>{one.state}</Badge>
                </td>
                <td class="quiet">{format.time(one.expires_at)}</td>
                <td class="quiet">{one.used_from ?? "–"}</td>
                <td>
                  {one.state === "open" && (
                    <ActionButton act={() => revoke(one.id)} kind="danger" onError={setError}>
                      Take back
                    </ActionButton>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
/** Makes an invitation, and shows what to type on the other machine. */
export function Invite({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [made, setMade] = useState<Schemas["Invitation"] | null>(null);
  async function invite(): Promise<void> {
    const wanted = name.trim() ? { name: name.trim() } : {};
    setMade(await send<Schemas["Invitation"]>("POST", "/api/v1/nodes:invite", wanted));
  }
  const close = (
    <button type="button" class="button" onClick={onClose}>
      Close
    </button>
  );
  return (
    <Dialog title="Add a machine" onClose={onClose}>
      {made === null ? (
        <Form verb="Make an invitation" act={invite} beside={close}>
          <p>An invitation is good for one machine, for an hour.</p>
          <Field
            label="What the machine is to be called"
            hint="as its host is called"
            value={name}
            onInput={setName}
          />
        </Form>
      ) : (
        <>
          <p>Type this on the machine, where gpuyard is installed:</p>
          <CommandToCopy text={`gpuyard join ${made.url} ${made.code}`} />
          <p class="quiet">It is good until {format.time(made.expires_at)}, and shown only here.</p>
          <div class="row">{close}</div>
        </>
      )}
    </Dialog>
  );
}
