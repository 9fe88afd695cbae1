// Who has signed in with this browser.

import { get, noteSignIn, onSignedOut, Problem, signIn, type Schemas } from "../api/client";
import { feed } from "../api/events";
import { Store } from "./store";

export type Role = Schemas["Role"];
export type WhoAmI = Schemas["WhoAmI"];
export type SessionState =
  | { kind: "asking" }
  | { kind: "down" }
  | { kind: "out" }
  | { kind: "in"; who: WhoAmI }
  // Signed out while the page was open: what was typed stays behind the sign-in.
  | { kind: "expired"; who: WhoAmI };

const RANKS: Record<Role, number> = { viewer: 0, member: 1, maintainer: 2, administrator: 3 };

// Tells the other tabs of this browser that somebody has signed in: all have one cookie.
const tabs = new BroadcastChannel("gpuyard.signed-in");

class Session {
  readonly state = new Store<SessionState>({ kind: "asking" });
  /** Why the link that led here signs nobody in. */
  readonly linkFault = new Store<Problem | null>(null);

  /** Ask the server who this is; begins the live stream where somebody is signed in. */
  async begin(): Promise<void> {
    try {
      await this.signInByLink();
      const who = await get<WhoAmI>("/api/v1/whoami");
      noteSignIn();
      this.state.set({ kind: "in", who });
      void feed.run();
      tabs.postMessage(null);
    } catch (error) {
      // What was typed stays behind the sign-in.
      if (this.state.value.kind === "expired") throw error;
      const isOut = error instanceof Problem && error.isSignedOut;
      this.state.set({ kind: isOut ? "out" : "down" });
    }
  }

  /** Signs in where the address has the code of `gpuyard page`, and forgets it. */
  private async signInByLink(): Promise<void> {
    this.linkFault.set(null);
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (code === null) return;
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await signIn({ code });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      // Who was signed in still is.
      this.linkFault.set(error);
    }
  }

  /** Somebody has signed in in another tab. */
  async follow(): Promise<void> {
    const { kind } = this.state.value;
    if (kind === "out" || kind === "expired") await this.begin().catch(() => undefined);
  }

  /** Their rights may have changed. */
  async askAgain(): Promise<void> {
    // Where the server does not answer, they stay what they were.
    const who = await get<WhoAmI>("/api/v1/whoami").catch(() => null);
    if (who && this.state.value.kind === "in") this.state.set({ kind: "in", who });
  }

  /** The server says that nobody is signed in any more. */
  end(): void {
    const state = this.state.value;
    if (state.kind === "in") this.state.set({ kind: "expired", who: state.who });
  }

  /** Resolves when somebody is signed in. */
  signedIn(): Promise<void> {
    if (this.state.value.kind === "in") return Promise.resolve();
    return new Promise((resolve) => {
      const end = this.state.watch(({ kind }) => {
        if (kind !== "in") return;
        end();
        resolve();
      });
    });
  }

  /** Whether who has signed in may do what needs this role. The server refuses anyway. */
  may(role: Role): boolean {
    const state = this.state.value;
    return "who" in state && RANKS[state.who.role] >= RANKS[role];
  }
}

export const session = new Session();
tabs.addEventListener("message", () => void session.follow());
onSignedOut(() => session.end());
feed.listen((event) => /^(user|project)\./.test(event.kind) && void session.askAgain());
