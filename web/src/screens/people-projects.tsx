// Registered projects, and who is in them.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import { useResource } from "../state/resource";
import { me } from "../state/rights";
import { session } from "../state/session";
import { ActionButton, Badge, Empty, ErrorNote, Found } from "../ui/parts";
import { Choice, Field } from "../ui/fields";
import { FormDialog, Tick } from "../ui/forms";
import { asChoices, ROLES, useUsers } from "./people-users";

type Project = Schemas["Project"];
export const PROJECT_ROLES = ROLES.filter((role) => role !== "administrator");
const isAboutProjects = (event: ServerEvent) => event.kind.startsWith("project.");

export function useProjects() {
  return useResource<{ items: Project[] }>("/api/v1/projects", {}, { when: isAboutProjects });
}

export function ProjectsTab() {
  const projects = useProjects();
  const [isAdding, setAdding] = useState(false);
  return (
    <>
      <div class="head">
        <p class="quiet">Only its members, and maintainers, submit to a registered project.</p>
        <span class="spring" />
        {session.may("administrator") && (
          <button type="button" class="button primary" onClick={() => setAdding(true)}>
            Register a project
          </button>
        )}
      </div>
      <Found of={projects} />
      {projects.value?.items.length === 0 && <Empty>No project is registered.</Empty>}
      <div class="columns">
        {projects.value?.items.map((project) => (
          <ProjectCard key={project.name} project={project} onChange={projects.reload} />
        ))}
      </div>
      {isAdding && <AddProject onClose={() => setAdding(false)} onDone={projects.reload} />}
    </>
  );
}

/** Whether who has signed in may say who is in a project. */
function manages(project: Project): boolean {
  if (session.may("administrator")) return true;
  const own = project.members?.find((member) => member.user === me());
  return own?.role === "maintainer" && session.may("member");
}

function ProjectCard({ project, onChange }: { project: Project; onChange: () => void }) {
  const [isAdding, setAdding] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const path = `/api/v1/projects/${encodeURIComponent(project.name)}`;
  const may = manages(project);
  async function act(method: string, where: string, body?: unknown): Promise<void> {
    await send(method, where, body);
    onChange();
  }
  return (
    <article class="card" aria-label={project.name}>
      <div class="row wide">
        <strong class="cut">{project.name}</strong>
        <Badge tone={project.private ? "warn" : "plain"}>
          {project.private ? "private" : "open"}
        </Badge>
      </div>
      {project.members?.length ? (
        <table class="middle">
          <tbody>
            {project.members.map((member) => (
              <tr key={member.user}>
                <td>{member.user}</td>
                <td class="quiet">{member.role}</td>
                {may && (
                  <td class="number">
                    <ActionButton
                      act={() => act("DELETE", `${path}/members/${member.user}`)}
                      kind="danger"
                      onError={setError}
                    >
                      Remove<span class="hidden-text"> {member.user}</span>
                    </ActionButton>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p class="quiet">Nobody is in it.</p>
      )}
      <ErrorNote error={error} />
      <div class="row">
        {may && (
          <button type="button" class="button" onClick={() => setAdding(true)}>
            Add a member
          </button>
        )}
        {session.may("administrator") && (
          <ActionButton
            act={() => act("PATCH", path, { private: !project.private })}
            onError={setError}
          >
            {project.private ? "Make it open" : "Make it private"}
          </ActionButton>
        )}
      </div>
      {isAdding && (
        <AddMember
          project={project.name}
          onClose={() => setAdding(false)}
          add={(user, role) => act("PUT", `${path}/members/${user}`, { role })}
        />
      )}
    </article>
  );
}

function AddMember(props: {
  project: string;
  onClose: () => void;
  add: (user: string, role: string) => Promise<void>;
}) {
  const users = useUsers();
  const names = users.value?.items.map((user) => user.name) ?? [];
  const [user, setUser] = useState("");
  const [role, setRole] = useState("member");
  return (
    <FormDialog
      title={`Add a member to ${props.project}`}
      verb="Add"
      act={() => props.add(user, role)}
      onClose={props.onClose}
    >
      <Choice
        label="User"
        required
        value={user}
        options={[["", "choose one"], ...asChoices(names)]}
        onChoose={setUser}
      />
      <Choice
        label="Role in the project"
        value={role}
        options={asChoices(PROJECT_ROLES)}
        onChoose={setRole}
      />
    </FormDialog>
  );
}

function AddProject({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [name, setName] = useState("");
  const [isPrivate, setPrivate] = useState(false);
  async function add(): Promise<void> {
    await send("POST", "/api/v1/projects", { name, private: isPrivate });
    onDone();
  }
  return (
    <FormDialog title="Register a project" verb="Register" act={add} onClose={onClose}>
      <Field label="Name" value={name} onInput={setName} required />
      <Tick
        label="Private: only its members and administrators see it"
        checked={isPrivate}
        onChange={setPrivate}
      />
    </FormDialog>
  );
}
