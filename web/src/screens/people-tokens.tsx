// Tokens: made and shown once, replaced, and revoked.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { me } from "../state/rights";
import { session } from "../state/session";
import { Badge, Card, Dialog, Empty, Found } from "../ui/parts";
import { Choice, CopyButton, Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { ROLES, useUsers } from "./people-users";

type Token = Schemas["Token"];
type Issued = Schemas["IssuedToken"];
const DAY_S = 86_400;
export const ENDS = [
  ["30", "in 30 days"],
  ["90", "in 90 days"],
  ["365", "in a year"],
  ["", "never"],
] as const;
const KINDS: Record<string, string> = { command: "of a command", session: "of a browser" };
const isAboutTokens = (event: ServerEvent) => event.kind.startsWith("token.");

export function useTokens() {
  return useResource<{ items: Token[] }>("/api/v1/tokens", {}, { when: isAboutTokens });
}

/** What to send for a token that ends after so many days; empty: never. */
export function lastsS(days: string): { expires_in_s?: number } {
  return days ? { expires_in_s: Number(days) * DAY_S } : {};
}

export function TokensTab() {
  const tokens = useTokens();
  const [isMaking, setMaking] = useState(false);
  const [made, setMade] = useState<Issued | null>(null);
  return (
    <>
      <Card
        title={session.may("administrator") ? "Tokens of all users" : "Your tokens"}
        action={
          <button type="button" class="button primary" onClick={() => setMaking(true)}>
            Make a token
          </button>
        }
      >
        <Found of={tokens} />
        {tokens.value?.items.length === 0 && <Empty>No token is good now.</Empty>}
        {tokens.value && tokens.value.items.length > 0 && (
          <TokenList tokens={tokens.value.items} onChange={tokens.reload} />
        )}
      </Card>
      {isMaking && (
        <MakeToken
          onClose={() => setMaking(false)}
          onMade={(token) => (setMade(token), tokens.reload())}
        />
      )}
      {made && <ShownOnce made={made} onClose={() => setMade(null)} />}
    </>
  );
}

/** Tokens that can be replaced and revoked. */
export function TokenList({ tokens, onChange }: { tokens: Token[]; onChange: () => void }) {
  const [made, setMade] = useState<Issued | null>(null);
  const [asked, setAsked] = useState<{ token: Token; verb: "Revoke" | "Replace" } | null>(null);
  async function act(): Promise<void> {
    const path = `/api/v1/tokens/${asked!.token.id}`;
    if (asked!.verb === "Revoke") await send("DELETE", path);
    else setMade(await send<Issued>("POST", `${path}/rotate`));
    onChange();
  }
  return (
    <>
      <TokenTable tokens={tokens} onAsk={(token, verb) => setAsked({ token, verb })} />
      {asked && (
        <FormDialog
          title={`${asked.verb} the token ${asked.token.name} of ${asked.token.user}?`}
          verb={asked.verb}
          kind="danger"
          act={act}
          onClose={() => setAsked(null)}
        >
          <p>Whatever uses it is refused from the next request on.</p>
        </FormDialog>
      )}
      {made && <ShownOnce made={made} onClose={() => setMade(null)} />}
    </>
  );
}

function TokenTable(props: {
  tokens: Token[];
  onAsk: (token: Token, verb: "Revoke" | "Replace") => void;
}) {
  const now = useNow();
  return (
    <div class="scrolls" role="region" aria-label="Tokens" tabIndex={0}>
      <table class="middle">
        <thead>
          <tr>
            <th>Name</th>
            <th>User</th>
            <th>Role</th>
            <th>Last used</th>
            <th>Ends</th>
            <th>Change</th>
          </tr>
        </thead>
        <tbody>
          {props.tokens.map((token) => (
            <tr key={token.id}>
              <td>
                {token.name} {token.kind && KINDS[token.kind] && <Badge>{KINDS[token.kind]}</Badge>}
              </td>
              <td>{token.user}</td>
              <td>{token.role ?? <span class="quiet">that of its user</span>}</td>
              <td class="quiet">{token.used_at ? format.ago(token.used_at, now) : "never"}</td>
              <td class="quiet">{token.expires_at ? format.time(token.expires_at) : "never"}</td>
              <td>
                <span class="row">
                  {token.kind === "token" && (
                    <button
                      type="button"
                      class="button"
                      onClick={() => props.onAsk(token, "Replace")}
                    >
                      Replace
                    </button>
                  )}
                  <button
                    type="button"
                    class="button danger"
                    onClick={() => props.onAsk(token, "Revoke")}
                  >
                    Revoke
                  </button>
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function MakeToken(props: { onClose: () => void; onMade: (token: Issued) => void }) {
  const users = useUsers();
  const own = me();
  const [name, setName] = useState("");
  const [user, setUser] = useState(own ?? "");
  const [role, setRole] = useState("");
  const [days, setDays] = useState<string>("90");
  const names = users.value?.items.map((one) => one.name) ?? [];
  const whose = own === null ? [["", "choose one"] as const] : [];
  async function make(): Promise<void> {
    const wanted = {
      user,
      ...(name ? { name } : {}),
      ...(role ? { role } : {}),
      ...lastsS(days),
    };
    props.onMade(await send<Issued>("POST", "/api/v1/tokens", wanted));
  }
  return (
    <FormDialog title="Make a token" verb="Make" act={make} onClose={props.onClose}>
      {session.may("administrator") && (
        <Choice
          label="Of whom"
          required
          value={user}
          options={[...whose, ...names.map((one) => [one, one] as const)]}
          onChoose={setUser}
        />
      )}
      <Field label="Name, such as laptop" value={name} onInput={setName} />
      <Choice
        label="What it may do"
        value={role}
        options={[
          ["", "all that its user may"],
          ...ROLES.filter((one) => session.may(one)).map(
            (one) => [one, `what a ${one} may`] as const,
          ),
        ]}
        onChoose={setRole}
      />
      <Choice label="It ends" value={days} options={ENDS} onChoose={setDays} />
    </FormDialog>
  );
}

/** A token that was just made. Nobody can see it again. */
export function ShownOnce({ made, onClose }: { made: Issued; onClose: () => void }) {
  return (
    <Dialog title={`The token ${made.name} of ${made.user}`} onClose={onClose}>
      <p>Copy it now: it is kept nowhere, and not shown again.</p>
      <output class="sunken mono breaks" aria-label="Token">
        {made.token}
      </output>
      <div class="row">
        <CopyButton text={made.token} kind="primary" />
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
