// Users, their roles, and adding them.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useResource } from "../state/resource";
import { type Role, session } from "../state/session";
import { ActionButton, Badge, Card, Empty, ErrorNote } from "../ui/parts";
import { Choice, Field } from "../ui/fields";
import { FormDialog, Tick } from "../ui/forms";
import { ShownOnce } from "./people-tokens";

type User = Schemas["User"];
export const ROLES: readonly Role[] = ["viewer", "member", "maintainer", "administrator"];
export const asChoices = (words: readonly string[]) => words.map((word) => [word, word] as const);
const isAboutUsers = (event: ServerEvent) => event.kind.startsWith("user.");

export function useUsers() {
  return useResource<{ items: User[] }>("/api/v1/users", {}, { when: isAboutUsers });
}

export function UsersTab() {
  const users = useUsers();
  const [isAdding, setAdding] = useState(false);
  const [made, setMade] = useState<Schemas["IssuedToken"] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const may = session.may("administrator");
  return (
    <>
      <Card
        title="Users"
        action={
          may && (
            <button type="button" class="button primary" onClick={() => setAdding(true)}>
              Add a user
            </button>
          )
        }
      >
        <ErrorNote error={error ?? users.error} />
        {users.value?.items.length === 0 && (
          <Empty>Only the owner of the instance uses it so far.</Empty>
        )}
        {users.value && users.value.items.length > 0 && (
          <UserTable users={users.value.items} onChange={users.reload} onError={setError} />
        )}
      </Card>
      {isAdding && (
        <AddUser
          onClose={() => setAdding(false)}
          onMade={(token) => (setMade(token), users.reload())}
        />
      )}
      {made && <ShownOnce made={made} onClose={() => setMade(null)} />}
    </>
  );
}

interface Changing {
  onChange: () => void;
  onError: (error: Error | null) => void;
}

function UserTable({ users, ...changing }: { users: User[] } & Changing) {
  const may = session.may("administrator");
  return (
    <div class="scrolls" role="region" aria-label="Users" tabIndex={0}>
      <table class="middle">
        <thead>
          <tr>
            <th>Name</th>
            <th>Role</th>
            <th>Signs in</th>
            <th>Added</th>
            {may && <th>Change</th>}
          </tr>
        </thead>
        <tbody>
          {users.map((user) => (
            <UserLine key={user.name} user={user} {...changing} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function UserLine({ user, onChange, onError }: { user: User } & Changing) {
  const may = session.may("administrator");
  async function change(changes: Schemas["UserChanges"]): Promise<void> {
    await send("PATCH", `/api/v1/users/${user.name}`, changes);
    onChange();
  }
  return (
    <tr>
      <td class="whole">
        {user.name} {user.disabled && <Badge tone="bad">disabled</Badge>}
      </td>
      <td>
        {may && !user.project ? (
          <select
            aria-label={`Role of ${user.name}`}
            value={user.role}
            onChange={(event) => {
              const role = event.currentTarget.value as Role;
              change({ role }).catch((error: Error) => (onError(error), onChange()));
            }}
          >
            {ROLES.map((role) => (
              <option key={role}>{role}</option>
            ))}
          </select>
        ) : (
          user.role
        )}
      </td>
      <td class="quiet">{howItSignsIn(user)}</td>
      <td class="quiet">{format.time(user.created_at)}</td>
      {may && (
        <td>
          <ActionButton
            act={() => change({ disabled: !user.disabled })}
            onError={onError}
            {...(user.disabled ? {} : { kind: "danger" as const })}
          >
            {user.disabled ? "Enable" : "Disable"}
          </ActionButton>
        </td>
      )}
    </tr>
  );
}

function howItSignsIn(user: User): string {
  if (user.project) return `with tokens, for the project ${user.project}`;
  if (user.awaits_sign_in) return "at the provider, not yet";
  return user.issuer ? "at the provider" : "with tokens";
}

interface AddingUser {
  onClose: () => void;
  onMade: (token: Schemas["IssuedToken"] | null) => void;
}

function AddUser({ onClose, onMade }: AddingUser) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("member");
  const [isOfProvider, setOfProvider] = useState(false);
  async function add(): Promise<void> {
    await send("POST", "/api/v1/users", { name, role, awaits_sign_in: isOfProvider });
    const token = { user: name, name: "first" };
    onMade(isOfProvider ? null : await send("POST", "/api/v1/tokens", token));
  }
  return (
    <FormDialog title="Add a user" verb="Add" act={add} onClose={onClose}>
      <Field label="Name, such as ana" value={name} onInput={setName} required />
      <Choice label="Role" value={role} options={asChoices(ROLES)} onChoose={setRole} />
      <Tick
        label="Signs in at the provider of identities, not with a token"
        checked={isOfProvider}
        onChange={setOfProvider}
      />
    </FormDialog>
  );
}
