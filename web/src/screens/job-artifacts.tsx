// The files that a job has left: downloaded, shared and removed, and a model card of them.

import { useState } from "preact/hooks";

import { address, type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useResource } from "../state/resource";
import { mayChange } from "../state/rights";
import { FormDialog } from "../ui/forms";
import { Empty, Found } from "../ui/parts";
import { ArtifactLinks } from "./artifact-links";
import { ModelCard } from "./model-card";

type Job = Schemas["Job"];
type Artifact = Schemas["Artifact"];

export function ArtifactsTab({ job }: { job: Job }) {
  const isNew = (event: ServerEvent) =>
    event.job_id === job.id && event.kind.startsWith("artifacts.");
  const path = `/api/v1/jobs/${job.id}/artifacts`;
  const found = useResource<{ items: Artifact[] }>(path, {}, { when: isNew });
  const [removed, setRemoved] = useState<string | null>(null);
  const [shared, setShared] = useState<Artifact | null>(null);
  const [isCarded, setCarded] = useState(false);
  async function remove(): Promise<void> {
    await send("DELETE", address(path, { path: removed! }));
    found.reload();
  }
  const artifacts = found.value?.items ?? [];
  if (found.value && artifacts.length === 0) return <Empty>It has left no artifacts.</Empty>;
  return (
    <div class="stack">
      <div>
        <button type="button" class="button" onClick={() => setCarded(true)}>
          Model card
        </button>
      </div>
      <Found of={found} />
      {artifacts.length > 0 && (
        <Files job={job} artifacts={artifacts} onShare={setShared} onRemove={setRemoved} />
      )}
      {isCarded && <ModelCard job={job} onClose={() => setCarded(false)} />}
      {shared && <ArtifactLinks artifact={shared} onClose={() => setShared(null)} />}
      {removed !== null && (
        <FormDialog
          title={`Remove ${removed}?`}
          verb="Remove it"
          kind="danger"
          act={remove}
          onClose={() => setRemoved(null)}
        >
          <p>Nothing brings the file back, and links to it open nothing any more.</p>
        </FormDialog>
      )}
    </div>
  );
}

interface FilesProps {
  job: Job;
  artifacts: Artifact[];
  onShare: (artifact: Artifact) => void;
  onRemove: (path: string) => void;
}

function Files({ job, artifacts, onShare, onRemove }: FilesProps) {
  return (
    <div class="card scrolls" tabIndex={0} role="region" aria-label="Artifacts">
      <table>
        <thead>
          <tr>
            <th>File</th>
            <th class="number">Size</th>
            <th>Saved</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {artifacts.map((one) => (
            <tr key={one.id}>
              <td class="mono">{one.path}</td>
              <td class="number">{format.bytes(one.size)}</td>
              <td>{format.time(one.created_at)}</td>
              <td>
                <div class="row wrap">
                  <a
                    class="button"
                    href={`/api/v1/artifacts/${one.id}/content`}
                    download={one.path.split("/").at(-1)}
                  >
                    Download<span class="hidden-text"> {one.path}</span>
                  </a>
                  {mayChange(job) && (
                    <>
                      <button type="button" class="button" onClick={() => onShare(one)}>
                        Share<span class="hidden-text"> {one.path}</span>
                      </button>
                      <button
                        type="button"
                        class="button danger"
                        onClick={() => onRemove(one.path)}
                      >
                        Remove<span class="hidden-text"> {one.path}</span>
                      </button>
                    </>
                  )}
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
