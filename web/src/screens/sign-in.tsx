import { useEffect, useState } from "preact/hooks";

import { get, type Schemas, signIn } from "../api/client";
import { session } from "../state/session";
import { useStore } from "../state/store";
import { ErrorNote } from "../ui/parts";

export function SignInScreen() {
  const linkFault = useStore(session.linkFault);
  return (
    <main class="sign-in">
      <div class="card">
        <h1>gpuyard</h1>
        <p class="quiet">Sign in to see the queue.</p>
        <ErrorNote error={linkFault} />
        <SignInForm />
      </div>
    </main>
  );
}

/** Signs in with a token, or at the provider where the server has one. */
export function SignInForm() {
  const [ways, setWays] = useState<Schemas["SignInWays"] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [token, setToken] = useState("");
  useEffect(() => void get<Schemas["SignInWays"]>("/api/v1/sign-in").then(setWays, setError), []);

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setError(null);
    try {
      await signIn({ token });
      await session.begin();
    } catch (problem) {
      setError(problem as Error);
    }
  }

  const here = location.pathname + location.search;
  return (
    <div class="stack">
      {ways?.openid && (
        <a class="button primary" href={`/auth/login?next=${encodeURIComponent(here)}`}>
          Sign in at {new URL(ways.issuer!).host}
        </a>
      )}
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <label class="field">
          <span>Token</span>
          <input
            type="password"
            autocomplete="current-password"
            required
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
        </label>
        <p class="quiet">
          On the server's machine: <code>cat ~/.gpuyard/token</code>. Others ask an administrator.
        </p>
        <button class="button primary">Sign in</button>
      </form>
      <ErrorNote error={error} />
    </div>
  );
}
