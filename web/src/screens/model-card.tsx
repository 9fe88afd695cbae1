// A model card of a job: what is known of the run, to publish beside its files.

import { useEffect, useState } from "preact/hooks";

import { address, getText } from "../api/client";
import { useSettled } from "../state/settled";
import { CommandToCopy, Field } from "../ui/fields";
import { Dialog, ErrorNote, Loading } from "../ui/parts";

interface Props {
  job: { id: string; name: string };
  onClose: () => void;
}

export function ModelCard({ job, onClose }: Props) {
  const [license, setLicense] = useState("");
  const [base, setBase] = useState("");
  const [tags, setTags] = useState("");
  const words = tags.split(/[\s,]+/).filter(Boolean);
  const path = useSettled(
    address(`/api/v1/jobs/${job.id}/card`, {
      license: license.trim() || undefined,
      base_model: base.trim() || undefined,
      tag: words,
    }),
  );
  const { text, error } = useText(path);
  return (
    <Dialog title={`A model card for ${job.name}`} onClose={onClose}>
      <p class="quiet">
        It says what is known of the run: its settings, its results and its files. Check it, and
        publish it beside them.
      </p>
      <Field label="Licence" hint="apache-2.0" value={license} onInput={setLicense} />
      <Field
        label="The model it began with"
        hint="openai-community/gpt2"
        value={base}
        onInput={setBase}
      />
      <Field label="Tags" hint="text-generation, english" value={tags} onInput={setTags} />
      <div class="row">
        {!error && (
          <a class="button primary" href={path} download="README.md">
            Download README.md
          </a>
        )}
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </div>
      <ErrorNote error={error} />
      {text === null && !error && <Loading />}
      {text !== null && !error && (
        <pre class="sunken wraps tall" tabIndex={0} role="region" aria-label="The card">
          {text}
        </pre>
      )}
      <p class="quiet small">
        In the folder of the program, the command finds the model that it began with by itself:
      </p>
      <CommandToCopy text={`gpuyard artifacts card ${job.id} > README.md`} />
    </Dialog>
  );
}

/** The text at a path; the last one stays until the next one is there. */
function useText(path: string): { text: string | null; error: Error | null } {
  const [text, setText] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    const asking = new AbortController();
    getText(path, asking.signal).then(
      (answer) => {
        setText(answer);
        setError(null);
      },
      (fault: Error) => {
        if (!asking.signal.aborted) setError(fault);
      },
    );
    return () => asking.abort();
  }, [path]);
  return { text, error };
}
