// Links to one artifact, for people without a token: a new one, those that live, and their end.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Choice, CommandToCopy } from "../ui/fields";
import { Form } from "../ui/forms";
import { ActionButton, Dialog, Empty, ErrorNote, Found } from "../ui/parts";

type Living = Schemas["LivingLink"];
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const TIMES: readonly (readonly [string, string])[] = [
  [String(HOUR_S), "an hour"],
  [String(DAY_S), "a day"],
  [String(7 * DAY_S), "7 days"],
  [String(30 * DAY_S), "30 days"],
  [String(365 * DAY_S), "a year"],
];
/** Links also end by themselves. */
const LOOK_AGAIN_S = 30;

interface Props {
  artifact: { id: string; path: string };
  onClose: () => void;
}

export function ArtifactLinks({ artifact, onClose }: Props) {
  const path = `/api/v1/artifacts/${artifact.id}/links`;
  const found = useResource<{ items: Living[] }>(path, {}, { everyS: LOOK_AGAIN_S });
  const [lastsS, setLasts] = useState(String(7 * DAY_S));
  const [shown, setShown] = useState<Schemas["ArtifactLink"] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  async function share(): Promise<void> {
    setShown(await send<Schemas["ArtifactLink"]>("POST", path, { valid_s: Number(lastsS) }));
    found.reload();
  }
  async function end(id: string): Promise<void> {
    await send("DELETE", `${path}/${id}`);
    if (shown?.id === id) setShown(null);
    found.reload();
  }
  return (
    <Dialog title={`Links to ${artifact.path}`} onClose={onClose}>
      <p class="quiet">
        Whoever has a link and can reach this server gets the file without signing in.
      </p>
      <Form
        verb="Make a link"
        act={share}
        beside={
          <button type="button" class="button" onClick={onClose}>
            Close
          </button>
        }
      >
        <Choice label="It opens the file for" value={lastsS} options={TIMES} onChoose={setLasts} />
      </Form>
      {shown && (
        <div role="status" class="stack">
          <p>Good until {format.time(shown.expires_at)}:</p>
          <CommandToCopy text={shown.url} />
        </div>
      )}
      <h3 class="small">Links that open it now</h3>
      <Found of={found} />
      <ErrorNote error={error} />
      {found.value && (
        <LinkTable links={found.value.items} onShow={setShown} onEnd={end} onError={setError} />
      )}
    </Dialog>
  );
}

interface TableProps {
  links: Living[];
  onShow: (link: Living) => void;
  onEnd: (id: string) => Promise<void>;
  onError: (error: Error | null) => void;
}

function LinkTable({ links, onShow, onEnd, onError }: TableProps) {
  if (links.length === 0) return <Empty>None does.</Empty>;
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label="Links that open it now">
      <table>
        <thead>
          <tr>
            <th>Good until</th>
            <th>Made by</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {links.map((link) => (
            <tr key={link.id}>
              <td>{format.time(link.expires_at)}</td>
              <td>{link.made_by ?? "the owner"}</td>
              <td>
                <div class="row">
                  <button type="button" class="button" onClick={() => onShow(link)}>
                    Show
                  </button>
                  <ActionButton kind="danger" act={() => onEnd(link.id)} onError={onError}>
                    End
                  </ActionButton>
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
