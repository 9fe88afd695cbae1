// Types to the program of a running job that takes input, as `gpuyard attach` does.

import { useEffect, useRef, useState } from "preact/hooks";

import type { FromAgent } from "../stream/frames";
import { JobStream } from "../stream/job-stream";
import { Field } from "../ui/fields";
import { Form, FormDialog } from "../ui/forms";
import { ErrorNote } from "../ui/parts";

const OVER: Record<string, string> = {
  ended: "Somebody has ended its input.",
  closed: "The program takes no more input.",
  attempt_over: "The program has ended.",
};

export function JobInput({ job }: { job: string }) {
  const [line, setLine] = useState("");
  const [isEnding, setEnding] = useState(false);
  const [over, setOver] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const opened = useStream(job, setOver, setError);
  async function type(): Promise<void> {
    (await opened()).type(`${line}\n`);
    setLine("");
  }
  async function end(): Promise<void> {
    (await opened()).send({ type: "InputEnd" });
  }
  if (over !== null) return <p class="quiet">{over}</p>;
  return (
    <>
      <Form
        label="Type to the program"
        verb="Send"
        act={type}
        beside={
          <button type="button" class="button" onClick={() => setEnding(true)}>
            End its input
          </button>
        }
      >
        <Field label="A line for the program" value={line} onInput={setLine} />
      </Form>
      <ErrorNote error={error} />
      {isEnding && (
        <FormDialog
          title="End the input of the program?"
          verb="End it"
          kind="danger"
          act={end}
          onClose={() => setEnding(false)}
        >
          <p>It finds the end of its input, for all who type to it. Nothing opens it again.</p>
        </FormDialog>
      )}
    </>
  );
}

/** Opens the stream when something is to be sent, and closes it at last. */
function useStream(
  job: string,
  onOver: (why: string) => void,
  onError: (error: Error | null) => void,
): () => Promise<JobStream> {
  const stream = useRef<Promise<JobStream> | null>(null);
  useEffect(() => () => void stream.current?.then((one) => one.close()).catch(() => undefined), []);
  function onFrame(frame: FromAgent): void {
    if (frame.type === "InputOver") onOver(OVER[frame.cause] ?? OVER["closed"]!);
  }
  function onEnd(fault: Error | null): void {
    stream.current = null;
    onError(fault);
  }
  return () => {
    stream.current ??= JobStream.open(`/api/v1/jobs/${job}/stdin`, { onFrame, onEnd }).catch(
      (fault) => {
        // The next one may be admitted.
        stream.current = null;
        throw fault;
      },
    );
    return stream.current;
  };
}
