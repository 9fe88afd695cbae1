// What who has signed in may do beside their role. The server refuses anyway.

import type { Schemas } from "../api/client";
import { session } from "./session";

type ProjectRights = Schemas["ProjectRights"];
const NONE: ProjectRights = { submits: false, changes: "none" };

/** A job, a batch or a dataset: of which project, and who has made it. */
interface Owned {
  project?: string | null;
  user?: string | null;
}

/** Who has signed in; null for the owner of the instance. */
export function me(): string | null {
  const state = session.state.value;
  return "who" in state ? state.who.user : null;
}

function rightsIn(project: string | null | undefined): ProjectRights {
  const state = session.state.value;
  if (!("who" in state)) return NONE;
  return state.who.projects[project ?? ""] ?? state.who.elsewhere;
}

/** Whether they may cancel, resume or remove it. */
export function mayChange({ project, user }: Owned): boolean {
  const { changes } = rightsIn(project);
  return changes === "all" || (changes === "own" && user === me());
}

/** Whether they may start something in this project. */
export function maySubmit(project: string | null | undefined): boolean {
  return rightsIn(project).submits;
}

/** Whether they may run commands beside a job, type to it, and connect to what it serves: all
 * of that has its submitter's account. */
export function opensStreams(job: Owned): boolean {
  const isOwn = session.may("administrator") || job.user === me();
  return isOwn && session.may("member") && mayChange(job);
}
