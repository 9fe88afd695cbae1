// What jobs read and keep: datasets with their versions, and workspaces.

import type { FunctionComponent } from "preact";
import { useRef, useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import { entriesOf, type Entry, type Progress, upload } from "../data/upload";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useResource } from "../state/resource";
import { mayChange } from "../state/rights";
import { setQuery, usePlace } from "../state/router";
import { session } from "../state/session";
import { Field, FileButton } from "../ui/fields";
import { Form } from "../ui/forms";
import { ActionButton, Dialog, Empty, ErrorNote, Found, Meter, Tabs } from "../ui/parts";
import { Artifacts } from "./data-artifacts";
import { addressOf, DatasetFiles, Sharing, WorkspaceFiles } from "./data-files";

type Dataset = Schemas["Dataset"];
const TABS = ["datasets", "artifacts", "workspaces"] as const;
const SHOWN: Record<(typeof TABS)[number], FunctionComponent> = {
  datasets: Datasets,
  artifacts: Artifacts,
  workspaces: Workspaces,
};
const isAboutDatasets = (event: ServerEvent) => event.kind.startsWith("dataset.");

export default function DataScreen() {
  const { query } = usePlace();
  const tab = TABS.find((one) => one === query.get("show")) ?? "datasets";
  const Shown = SHOWN[tab];
  return (
    <>
      <div class="head">
        <h1>Data</h1>
      </div>
      <Tabs
        label="What to show"
        names={TABS}
        chosen={tab}
        onChoose={(name) => setQuery({ show: name })}
      />
      <Shown key={tab} />
    </>
  );
}

// --- datasets ---

function Datasets() {
  const found = useResource<{ items: Dataset[] }>(
    "/api/v1/datasets",
    {},
    { when: isAboutDatasets },
  );
  const [removed, setRemoved] = useState<Dataset | null>(null);
  const [listed, setListed] = useState<Dataset | null>(null);
  const [shared, setShared] = useState<Dataset | null>(null);
  return (
    <>
      {session.may("member") && <Upload onAdded={found.reload} />}
      <Found of={found} />
      {found.value?.items.length === 0 && <Empty>There is no dataset yet.</Empty>}
      {Boolean(found.value?.items.length) && (
        <div class="card scrolls" tabIndex={0} role="group" aria-label="Datasets">
          <table>
            <thead>
              <tr>
                <th class="named">Dataset</th>
                <th>Project</th>
                <th class="number">Version</th>
                <th class="number">Size</th>
                <th class="number">Files</th>
                <th>Added</th>
                <th />
              </tr>
            </thead>
            <tbody>
              {found.value!.items.map((dataset) => (
                <DatasetLine
                  key={`${dataset.project}/${dataset.name}`}
                  dataset={dataset}
                  onList={() => setListed(dataset)}
                  onShare={() => setShared(dataset)}
                  onRemove={() => setRemoved(dataset)}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {listed && <DatasetFiles dataset={listed} onClose={() => setListed(null)} />}
      {shared && (
        <Sharing dataset={shared} onChange={found.reload} onClose={() => setShared(null)} />
      )}
      {removed && (
        <Remove
          dataset={removed}
          onClose={() => {
            setRemoved(null);
            found.reload();
          }}
        />
      )}
    </>
  );
}

interface LineProps {
  dataset: Dataset;
  onList: () => void;
  onShare: () => void;
  onRemove: () => void;
}

function DatasetLine(props: LineProps) {
  const { dataset } = props;
  const newest = dataset.versions?.[0];
  const isMine = mayChange({ project: dataset.project, user: dataset.owner ?? null });
  const shared = dataset.shared_with ?? [];
  return (
    <tr>
      <td>
        {dataset.name}
        {shared.length > 0 && (
          <span class="quiet small block">shared with {shared.join(", ")}</span>
        )}
      </td>
      <td>{dataset.project}</td>
      <td class="number">{newest?.number ?? "–"}</td>
      <td class="number">{format.bytes(newest?.size)}</td>
      <td class="number">{newest ? format.count(newest.files) : "–"}</td>
      <td class="quiet">{format.time(newest?.created_at ?? dataset.created_at)}</td>
      <td>
        <div class="row">
          <button
            type="button"
            class="button"
            aria-label={`Files of ${dataset.name}`}
            onClick={props.onList}
          >
            Files
          </button>
          {isMine && (
            <button
              type="button"
              class="button"
              aria-label={`Share ${dataset.name}`}
              onClick={props.onShare}
            >
              Share
            </button>
          )}
          {isMine && (
            <button
              type="button"
              class="button danger"
              aria-label={`Remove ${dataset.name}`}
              onClick={props.onRemove}
            >
              Remove
            </button>
          )}
        </div>
      </td>
    </tr>
  );
}

function Remove({ dataset, onClose }: { dataset: Dataset; onClose: () => void }) {
  const [error, setError] = useState<Error | null>(null);
  async function remove(): Promise<void> {
    await send("DELETE", addressOf(dataset.project, dataset.name));
    onClose();
  }
  return (
    <Dialog title={`Remove ${dataset.name}?`} onClose={onClose}>
      <p>
        All its versions go, and nothing brings them back. Jobs that wait for it fail. What runs
        keeps what it has.
      </p>
      <ErrorNote error={error} />
      <div class="row">
        <ActionButton act={remove} kind="danger" onError={setError}>
          Remove it
        </ActionButton>
        <button type="button" class="button" onClick={onClose}>
          Keep it
        </button>
      </div>
    </Dialog>
  );
}

// --- an upload ---

function Upload({ onAdded }: { onAdded: () => void }) {
  const [name, setName] = useState("");
  const [project, setProject] = useState("default");
  const [entries, setEntries] = useState<Entry[]>([]);
  const [progress, setProgress] = useState<Progress | null>(null);
  const stop = useRef<AbortController | null>(null);
  const size = entries.reduce((sum, { file }) => sum + file.size, 0);

  async function add(): Promise<void> {
    if (entries.length === 0) throw new Error("No file is chosen. Choose files or a folder.");
    // It would be another address, of which the server says only that there is none.
    if (/\//.test(name + project)) throw new Error("Names have no /. Leave it out.");
    const stopping = new AbortController();
    stop.current = stopping;
    setProgress({ done: 0, total: size });
    try {
      await upload(addressOf(project, name.trim()), entries, setProgress, stopping.signal);
      setEntries([]);
      onAdded();
    } catch (fault) {
      if (!stopping.signal.aborted) throw fault;
    } finally {
      setProgress(null);
    }
  }

  // Browsers hash only for pages that came over TLS, or from this machine.
  if (!window.isSecureContext) {
    return (
      <p class="quiet">
        Over TLS, you can upload here. <code>gpuyard datasets add</code> works, too.
      </p>
    );
  }
  return (
    <Form
      class="card"
      label="Upload"
      verb="Upload"
      act={add}
      beside={
        progress && (
          <button type="button" class="button" onClick={() => stop.current?.abort()}>
            Stop
          </button>
        )
      }
    >
      <div class="fields">
        <Field label="Dataset" hint="corpus" required value={name} onInput={setName} />
        <Field label="Project" required value={project} onInput={setProject} />
        <div class="row wrap">
          <FileButton onChoose={(files) => setEntries(entriesOf(files))}>Choose files</FileButton>
          <FileButton folder onChoose={(files) => setEntries(entriesOf(files))}>
            Choose a folder
          </FileButton>
        </div>
      </div>
      {entries.length > 0 && (
        <p class="quiet">
          {format.count(entries.length)} {entries.length === 1 ? "file" : "files"},{" "}
          {format.bytes(size)}
        </p>
      )}
      {progress && (
        <div class="stack tight" role="status">
          <Meter share={progress.total ? progress.done / progress.total : 0} label="Uploaded" />
          <span class="quiet small">
            {format.bytes(progress.done)} of {format.bytes(progress.total)}
          </span>
        </div>
      )}
    </Form>
  );
}

// --- workspaces ---

/** See `GET /api/v1/workspaces`. */
interface WorkspaceRow {
  project: string;
  name: string;
  path: string;
  files: number;
  size: number;
  used_at: number | null;
  removed_at: number | null;
  quota: number | null;
}

function Workspaces() {
  const found = useResource<{ items: WorkspaceRow[] }>("/api/v1/workspaces", {}, { everyS: 30 });
  const now = useNow();
  const items = found.value?.items ?? [];
  const [listed, setListed] = useState<WorkspaceRow | null>(null);
  return (
    <>
      <Found of={found} />
      {listed && (
        <WorkspaceFiles
          project={listed.project}
          name={listed.name}
          onClose={() => setListed(null)}
        />
      )}
      {found.value && items.length === 0 && (
        <Empty>
          There is no workspace yet. A job that names one makes it: its folder outlives the job.
        </Empty>
      )}
      {items.length > 0 && (
        <div class="card scrolls" tabIndex={0} role="group" aria-label="Workspaces">
          <table>
            <thead>
              <tr>
                <th class="named">Workspace</th>
                <th>Project</th>
                <th class="number">Size</th>
                <th class="bar">Of the project's quota</th>
                <th class="number">Files</th>
                <th class="number">Used</th>
                <th>Is removed</th>
                <th />
              </tr>
            </thead>
            <tbody>
              {items.map((one) => (
                <tr key={`${one.project}/${one.name}`}>
                  <td>
                    {one.name}
                    <span class="quiet small block mono breaks">{one.path}</span>
                  </td>
                  <td>{one.project}</td>
                  <td class="number">{format.bytes(one.size)}</td>
                  <td class="bar">
                    {one.quota && <Meter share={one.size / one.quota} label="Of the quota" />}
                  </td>
                  <td class="number">{format.count(one.files)}</td>
                  <td class="number quiet">{format.ago(one.used_at, now)}</td>
                  <td class="quiet">{one.removed_at ? format.time(one.removed_at) : "never"}</td>
                  <td>
                    <button
                      type="button"
                      class="button"
                      aria-label={`Files of ${one.name}`}
                      onClick={() => setListed(one)}
                    >
                      Files
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
