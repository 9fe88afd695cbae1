// Service accounts: users of one project, for programs, with their tokens.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import * as format from "../format";
import { session } from "../state/session";
import { ActionButton, Badge, Card, Empty, ErrorNote, Found } from "../ui/parts";
import { Choice, Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { PROJECT_ROLES, useProjects } from "./people-projects";
import { ENDS, lastsS, ShownOnce, TokenList, useTokens } from "./people-tokens";
import { asChoices, useUsers } from "./people-users";

type User = Schemas["User"];
type Issued = Schemas["IssuedToken"];

export function ServicesTab() {
  const users = useUsers();
  const tokens = useTokens();
  const [isAdding, setAdding] = useState(false);
  const [made, setMade] = useState<Issued | null>(null);
  const may = session.may("administrator");
  const accounts = users.value?.items.filter((user) => user.project) ?? [];
  const names = new Set(accounts.map((user) => user.name));
  const own = tokens.value?.items.filter((token) => names.has(token.user)) ?? [];
  return (
    <>
      <Card
        title="Service accounts"
        action={
          may && (
            <button type="button" class="button primary" onClick={() => setAdding(true)}>
              Add a service account
            </button>
          )
        }
      >
        <Found of={users} />
        {users.value && accounts.length === 0 && (
          <Empty>
            There is none. A program that submits jobs for a project needs no person's token.
          </Empty>
        )}
        {accounts.length > 0 && (
          <AccountTable accounts={accounts} onChange={users.reload} onMade={setMade} />
        )}
      </Card>
      {may && own.length > 0 && (
        <Card title="Their tokens">
          <TokenList tokens={own} onChange={tokens.reload} />
        </Card>
      )}
      {isAdding && (
        <AddAccount
          onClose={() => setAdding(false)}
          onMade={(token) => (setMade(token), users.reload())}
        />
      )}
      {made && <ShownOnce made={made} onClose={() => (setMade(null), tokens.reload())} />}
    </>
  );
}

interface TableProps {
  accounts: User[];
  onChange: () => void;
  onMade: (token: Issued) => void;
}

function AccountTable({ accounts, onChange, onMade }: TableProps) {
  const projects = useProjects();
  const [error, setError] = useState<Error | null>(null);
  const may = session.may("administrator");
  function roleOf(user: User): string {
    const project = projects.value?.items.find((one) => one.name === user.project);
    return project?.members?.find((member) => member.user === user.name)?.role ?? "–";
  }
  async function change(user: User): Promise<void> {
    await send("PATCH", `/api/v1/users/${user.name}`, { disabled: !user.disabled });
    onChange();
  }
  async function make(user: User): Promise<void> {
    onMade(await send<Issued>("POST", "/api/v1/tokens", { user: user.name }));
  }
  return (
    <div class="scrolls" role="region" aria-label="Service accounts" tabIndex={0}>
      <ErrorNote error={error} />
      <table class="middle">
        <thead>
          <tr>
            <th>Name</th>
            <th>Project</th>
            <th>Role there</th>
            <th>Added</th>
            {may && <th>Change</th>}
          </tr>
        </thead>
        <tbody>
          {accounts.map((user) => (
            <tr key={user.name}>
              <td class="whole">
                {user.name} {user.disabled && <Badge tone="bad">disabled</Badge>}
              </td>
              <td>{user.project}</td>
              <td>{roleOf(user)}</td>
              <td class="quiet">{format.time(user.created_at)}</td>
              {may && (
                <td>
                  <span class="row">
                    <ActionButton act={() => make(user)} onError={setError}>
                      New token<span class="hidden-text"> of {user.name}</span>
                    </ActionButton>
                    <ActionButton
                      act={() => change(user)}
                      onError={setError}
                      {...(user.disabled ? {} : { kind: "danger" as const })}
                    >
                      {user.disabled ? "Enable" : "Disable"}
                      <span class="hidden-text"> {user.name}</span>
                    </ActionButton>
                  </span>
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function AddAccount(props: { onClose: () => void; onMade: (token: Issued) => void }) {
  const projects = useProjects();
  const [name, setName] = useState("");
  const [project, setProject] = useState("");
  const [role, setRole] = useState("member");
  const [days, setDays] = useState("365");
  const names = projects.value?.items.map((one) => one.name) ?? [];
  async function add(): Promise<void> {
    await send("POST", "/api/v1/users", { name, project, role });
    const token = { user: name, name: "first", ...lastsS(days) };
    props.onMade(await send<Issued>("POST", "/api/v1/tokens", token));
  }
  return (
    <FormDialog title="Add a service account" verb="Add" act={add} onClose={props.onClose}>
      <Field label="Name, such as nightly" value={name} onInput={setName} required />
      <Choice
        label="Project"
        required
        value={project}
        options={[["", "choose one"], ...asChoices(names)]}
        onChoose={setProject}
      />
      <Choice
        label="Role in the project"
        value={role}
        options={asChoices(PROJECT_ROLES)}
        onChoose={setRole}
      />
      <Choice label="Its first token ends" value={days} options={ENDS} onChoose={setDays} />
    </FormDialog>
  );
}
