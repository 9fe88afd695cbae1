// A prompt to a model, and its answer as it comes.

import { useEffect, useState } from "preact/hooks";

import { request } from "../api/client";
import { TextField } from "../ui/fields";
import { ErrorNote } from "../ui/parts";

/** A part of an answer of `/v1/chat/completions`; all of it where the model does not stream. */
interface Chunk {
  choices?: { delta?: { content?: string | null }; message?: { content?: string | null } }[];
  error?: { message?: string };
}

export function PromptForm({ model }: { model: string }) {
  const [prompt, setPrompt] = useState("");
  const [answer, setAnswer] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const [asking, setAsking] = useState<AbortController | null>(null);
  // Who goes to another screen waits for no answer.
  useEffect(() => () => asking?.abort(), [asking]);

  async function ask(event: Event): Promise<void> {
    event.preventDefault();
    const mine = new AbortController();
    setAsking(mine);
    setAnswer("");
    setError(null);
    try {
      await answerTo(model, prompt, mine.signal, (text) => setAnswer((old) => old + text));
    } catch (problem) {
      if (!mine.signal.aborted) setError(problem as Error);
    }
    setAsking(null);
  }

  return (
    <form class="stack" aria-label={`A prompt to ${model}`} onSubmit={(event) => void ask(event)}>
      <TextField label="Prompt" rows={2} value={prompt} onInput={setPrompt} />
      <div class="row">
        {asking ? (
          <button type="button" class="button" onClick={() => asking.abort()}>
            Stop
          </button>
        ) : (
          <button class="button primary" disabled={prompt.trim() === ""}>
            Ask
          </button>
        )}
        {asking && answer === "" && (
          <span class="quiet">It is loaded first, if it is not yet.</span>
        )}
      </div>
      <ErrorNote error={error} />
      {answer && (
        <div class="sunken wraps" role="log" aria-label="Answer">
          {answer}
        </div>
      )}
    </form>
  );
}

async function answerTo(
  model: string,
  prompt: string,
  signal: AbortSignal,
  onText: (text: string) => void,
): Promise<void> {
  const answer = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, stream: true, messages: [{ role: "user", content: prompt }] }),
    signal,
  });
  if (!answer.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    onText(textOf((await answer.json()) as Chunk));
    return;
  }
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice("data:".length).trim() : "";
      if (data && data !== "[DONE]") onText(textOf(JSON.parse(data) as Chunk));
    }
  }
}

function textOf({ choices, error }: Chunk): string {
  if (error) throw new Error(error.message ?? "The model failed.");
  const [first] = choices ?? [];
  return first?.delta?.content ?? first?.message?.content ?? "";
}
