// The files that all jobs have left: found by their path or their job,
// downloaded and shared.

import { useState } from "preact/hooks";

import { type Schemas, send } from "../api/client";
import type { ServerEvent } from "../api/events";
import * as format from "../format";
import { useNow } from "../state/clock";
import { useListing } from "../state/pages";
import { mayChange } from "../state/rights";
import { setQuery, usePlace } from "../state/router";
import { session } from "../state/session";
import { Field } from "../ui/fields";
import { FormDialog } from "../ui/forms";
import { Empty, ErrorNote, Link, Loading } from "../ui/parts";
import { ArtifactLinks } from "./artifact-links";
import { ModelCard } from "./model-card";

type Found = Schemas["FoundArtifact"];
const isAboutArtifacts = (event: ServerEvent) => event.kind.startsWith("artifacts.");

export function Artifacts() {
  const { query } = usePlace();
  const text = query.get("text") ?? "";
  const found = useListing<Found>("/api/v1/artifacts", { text }, isAboutArtifacts);
  const [carded, setCarded] = useState<Found | null>(null);
  const [shared, setShared] = useState<Found | null>(null);
  const [isEnding, setEnding] = useState(false);
  return (
    <>
      <Field
        label="In the path, or the name of the job"
        hint="model.safetensors"
        value={text}
        onInput={(value) => setQuery({ text: value })}
      />
      <ErrorNote error={found.error} />
      {found.hasMore && found.items.length === 0 && !found.error && <Loading />}
      {!found.hasMore && found.items.length === 0 && (
        <Empty>
          {text ? "No file fits." : "No job has left a file yet."} A job keeps what{" "}
          <code>--artifacts</code> names.
        </Empty>
      )}
      {found.items.length > 0 && (
        <ArtifactTable artifacts={found.items} onCard={setCarded} onShare={setShared} />
      )}
      {found.hasMore && found.items.length > 0 && (
        <div>
          <button type="button" class="button" onClick={found.more}>
            Show older ones
          </button>
        </div>
      )}
      {session.may("administrator") && (
        <div>
          <button type="button" class="button danger" onClick={() => setEnding(true)}>
            End all links
          </button>
        </div>
      )}
      {isEnding && (
        <FormDialog
          title="End all links to artifacts?"
          verb="End them"
          kind="danger"
          act={() => send("DELETE", "/api/v1/artifact-links")}
          onClose={() => setEnding(false)}
        >
          <p>No link that anybody has made opens its file any more.</p>
        </FormDialog>
      )}
      {carded && (
        <ModelCard
          job={{ id: carded.job_id, name: carded.job_name }}
          onClose={() => setCarded(null)}
        />
      )}
      {shared && <ArtifactLinks artifact={shared} onClose={() => setShared(null)} />}
    </>
  );
}

interface TableProps {
  artifacts: Found[];
  onCard: (artifact: Found) => void;
  onShare: (artifact: Found) => void;
}

function ArtifactTable(props: TableProps) {
  const now = useNow();
  return (
    <div class="card scrolls" tabIndex={0} role="group" aria-label="Artifacts">
      <table class="middle">
        <thead>
          <tr>
            <th class="named">File</th>
            <th>Job</th>
            <th class="number">Size</th>
            <th class="number">Saved</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {props.artifacts.map((one) => (
            <tr key={one.id}>
              <td class="mono breaks">{one.path}</td>
              <td>
                <Link to={`/jobs/${one.job_id}`}>{one.job_name}</Link>
              </td>
              <td class="number">{format.bytes(one.size)}</td>
              <td class="number quiet whole">{format.ago(one.created_at, now)}</td>
              <td>
                <span class="row wrap">
                  <a
                    class="button"
                    href={`/api/v1/artifacts/${one.id}/content`}
                    download={one.path.split("/").at(-1)}
                    aria-label={`Download ${one.path} of ${one.job_name}`}
                  >
                    Download
                  </a>
                  {mayChange(one) && (
                    <button
                      type="button"
                      class="button"
                      aria-label={`Share ${one.path} of ${one.job_name}`}
                      onClick={() => props.onShare(one)}
                    >
                      Share
                    </button>
                  )}
                  <button
                    type="button"
                    class="button"
                    aria-label={`Model card of ${one.job_name}`}
                    onClick={() => props.onCard(one)}
                  >
                    Model card
                  </button>
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
