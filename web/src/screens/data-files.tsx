// The files of a version of a dataset, and of a workspace; and with whom a dataset is shared.

import { useState } from "preact/hooks";

import { get, type Schemas, send } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Choice, CommandToCopy, Field } from "../ui/fields";
import { Form } from "../ui/forms";
import { ActionButton, Dialog, Empty, ErrorNote } from "../ui/parts";

type Dataset = Schemas["Dataset"];
const LIMIT = 1000;

interface File {
  path: string;
  size: number;
}

interface FilePage {
  items: File[];
  next?: string | null;
}

export function addressOf(project: string, name: string): string {
  return `/api/v1/datasets/${encodeURIComponent(project)}/${encodeURIComponent(name)}`;
}

export function DatasetFiles({ dataset, onClose }: { dataset: Dataset; onClose: () => void }) {
  const versions = dataset.versions ?? [];
  const [version, setVersion] = useState(versions[0]?.number ?? 1);
  const project = dataset.project === "default" ? "" : `${dataset.project}/`;
  const path = `${addressOf(dataset.project, dataset.name)}/versions/${version}/files`;
  return (
    <Dialog title={`${dataset.name}, version ${version}`} onClose={onClose}>
      {versions.length > 1 && (
        <Choice
          label="Version"
          value={String(version)}
          options={versions.map(({ number, created_at: at }) => [
            String(number),
            `${number}, of ${format.time(at)}`,
          ])}
          onChoose={(number) => setVersion(Number(number))}
        />
      )}
      <FileList key={path} path={path} />
      <p class="quiet">A job reads it with:</p>
      <CommandToCopy
        text={`gpuyard run --dataset ${project}${dataset.name}@${version} -- python3 train.py`}
      />
      <Close onClose={onClose} />
    </Dialog>
  );
}

export function WorkspaceFiles(props: { project: string; name: string; onClose: () => void }) {
  const { project, name, onClose } = props;
  const where = `${encodeURIComponent(project)}/${encodeURIComponent(name)}`;
  return (
    <Dialog title={`Files of the workspace ${name}`} onClose={onClose}>
      <FileList path={`/api/v1/workspaces/${where}/files`} />
      <Close onClose={onClose} />
    </Dialog>
  );
}

function Close({ onClose }: { onClose: () => void }) {
  return (
    <div>
      <button type="button" class="button" onClick={onClose}>
        Close
      </button>
    </div>
  );
}

function FileList({ path }: { path: string }) {
  const first = useResource<FilePage>(path, { limit: LIMIT });
  const [later, setLater] = useState<FilePage[]>([]);
  const [error, setError] = useState<Error | null>(null);
  const pages = first.value ? [first.value, ...later] : [];
  const files = pages.flatMap((page) => page.items);
  const next = pages.at(-1)?.next;
  async function more(): Promise<void> {
    const page = await get<FilePage>(path, { limit: LIMIT, cursor: next ?? "" });
    setLater([...later, page]);
  }
  return (
    <>
      <ErrorNote error={error ?? first.error} />
      {first.value && files.length === 0 && <Empty>It holds no file.</Empty>}
      <div class="scrolls tall" tabIndex={0} role="group" aria-label="Files">
        <table>
          <tbody>
            {files.map((file) => (
              <tr key={file.path}>
                <td class="mono breaks">{file.path}</td>
                <td class="number">{format.bytes(file.size)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {next && (
        <div>
          <ActionButton act={more} onError={setError}>
            Show more
          </ActionButton>
        </div>
      )}
    </>
  );
}

export function Sharing(props: { dataset: Dataset; onChange: () => void; onClose: () => void }) {
  const { dataset, onChange, onClose } = props;
  const [project, setProject] = useState("");
  const [shared, setShared] = useState(dataset.shared_with ?? []);
  const [error, setError] = useState<Error | null>(null);
  async function change(method: "PUT" | "DELETE", other: string): Promise<void> {
    const path = `${addressOf(dataset.project, dataset.name)}/shares/${encodeURIComponent(other)}`;
    const changed = await send<Dataset>(method, path);
    setShared(changed.shared_with ?? []);
    setProject("");
    onChange();
  }
  return (
    <Dialog title={`With whom ${dataset.name} is shared`} onClose={onClose}>
      <p class="quiet">
        The jobs and the members of these projects read it. Jobs that were submitted keep it.
      </p>
      {shared.length === 0 && <p>With no other project.</p>}
      <table class="middle">
        <tbody>
          {shared.map((other) => (
            <tr key={other}>
              <td>{other}</td>
              <td class="number">
                <ActionButton act={() => change("DELETE", other)} kind="danger" onError={setError}>
                  Take it back<span class="hidden-text"> from {other}</span>
                </ActionButton>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <ErrorNote error={error} />
      <Form
        verb="Share it"
        act={() => change("PUT", project.trim())}
        beside={
          <button type="button" class="button" onClick={onClose}>
            Close
          </button>
        }
      >
        <Field label="Another project" required value={project} onInput={setProject} />
      </Form>
    </Dialog>
  );
}
