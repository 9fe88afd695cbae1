// The code of a commit, which the server fetches.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import { session } from "../state/session";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { Dialog } from "../ui/parts";
import { type Form, formOf, startOf } from "./form";

type Commit = Schemas["GitCommit"];
const NOTHING = { url: "", ref: "", folder: "" };

export function FromGit({ onForm }: { onForm: (form: Form) => void }) {
  const [isOpen, setOpen] = useState(false);
  const [notes, setNotes] = useState<readonly string[]>([]);
  const [wanted, setWanted] = useState(NOTHING);
  const field = (name: keyof typeof NOTHING, label: string, hint: string) => (
    <Field
      label={label}
      hint={hint}
      required={name === "url"}
      value={wanted[name]}
      onInput={(value) => setWanted({ ...wanted, [name]: value })}
    />
  );

  async function fetchIt(): Promise<void> {
    const trimmed = {
      url: wanted.url.trim(),
      ref: wanted.ref.trim(),
      folder: wanted.folder.trim(),
    };
    const commit = await send<Commit>("POST", "/api/v1/git-commits", trimmed);
    onForm(formOfCommit(commit, trimmed.folder));
    setNotes(commit.notes);
  }

  // The server fetches it for those who may submit.
  if (!session.may("member")) return null;
  return (
    <>
      <button type="button" class="button" onClick={() => setOpen(true)}>
        From git
      </button>
      {isOpen && (
        <FormDialog
          title="Code of a git repository"
          verb="Fetch it"
          act={fetchIt}
          onClose={() => setOpen(false)}
        >
          <p class="quiet">
            The server fetches it over HTTPS, so it must be public. With keys of your own, use{" "}
            <code>gpuyard run --git</code>.
          </p>
          {field("url", "Address", "https://github.com/you/code")}
          {field("ref", "Branch, tag or commit", "the newest")}
          {field("folder", "Folder in it", "all of it")}
        </FormDialog>
      )}
      {notes.length > 0 && (
        <Dialog title="Some of it is missing" onClose={() => setNotes([])}>
          {notes.map((note) => (
            <p key={note}>{note}.</p>
          ))}
          <div>
            <button type="button" class="button" onClick={() => setNotes([])}>
              Close
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

function formOfCommit({ spec, files, binary, label }: Commit, folder: string): Form {
  const form = formOf(spec);
  return {
    ...form,
    command: form.command || startOf(Object.keys(files), []),
    files: { text: files, base64: binary },
    // The job has a folder of its own, with these files.
    workdir: "",
    commit: label,
    commitFolder: folder,
  };
}
