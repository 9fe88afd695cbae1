// What who has signed in may do beside their role. The server refuses anyway.

import { session } from "./session";

/** Who has signed in; null for the owner of the instance. */
export function me(): string | null {
  const state = session.state.value;
  return "who" in state ? state.who.user : null;
}

/** Whether they may change what `owner` has submitted (null: the owner of the instance). */
export function mayChange(owner: string | null | undefined): boolean {
  return session.may("maintainer") || (session.may("member") && (owner ?? null) === me());
}
