// Questions that go on being asked, whatever becomes of the server meanwhile.

import { AGAIN_MS, mayPass, pause, Problem } from "../api/client";
import { session } from "./session";
import { inSight } from "./sight";

/** The answer that `ask` gets: when somebody looks, has signed in, and the server is there. Until
 * then, `onError` is told why there is none; null with the answer. */
export async function patiently<T>(
  ask: () => Promise<T>,
  signal: AbortSignal,
  onError: (error: Error | null) => void,
): Promise<T> {
  for (;;) {
    await inSight();
    try {
      const answer = await ask();
      if (!signal.aborted) onError(null);
      return answer;
    } catch (error) {
      const isSignedOut = error instanceof Problem && error.isSignedOut;
      if (signal.aborted || !(isSignedOut || mayPass(error))) throw error;
      onError(error as Error);
      await (isSignedOut ? session.signedIn() : pause(AGAIN_MS));
    }
  }
}
