// The language models: where they are loaded, who waits for them, and what can be done.

import { useState } from "preact/hooks";

import { send } from "../api/client";
import * as format from "../format";
import { useGpuNames } from "../state/gpu-names";
import { useResource } from "../state/resource";
import { session } from "../state/session";
import { PromptForm } from "./model-prompt";
import { ActionButton, Badge, Empty, ErrorNote, Found, type Tone } from "../ui/parts";

interface Model {
  name: string;
  engine: string;
  memory_gb: number;
  gpus: number;
  state: string;
  pinned: boolean;
  waiting: number;
  why_waiting: string | null;
  answered: number;
  boot_s: number | null;
  replicas: { gpu: string; gpus: string[]; state: string }[];
  problem: string | null;
}

export default function ModelsScreen() {
  const models = useResource<{ items: Model[] }>("/api/v1/models", {}, { isWatched: true });
  const items = models.value?.items ?? [];
  const nameOf = useGpuNames(items.flatMap(gpusOf));
  return (
    <>
      <div class="head">
        <h1>Models</h1>
      </div>
      <Found of={models} />
      {models.value?.items.length === 0 && (
        <Empty>
          No model is in the settings of this server. See <code>gpuyard llm --help</code>.
        </Empty>
      )}
      <div class="columns">
        {items.map((model) => (
          <ModelCard key={model.name} model={model} nameOf={nameOf} onChange={models.reload} />
        ))}
      </div>
    </>
  );
}

function toneOf(state: string): Tone {
  if (state === "failing") return "bad";
  return state === "absent" ? "plain" : "good";
}

function gpusOf({ replicas }: Model): string[] {
  return replicas.flatMap(({ gpus }) => gpus);
}

interface CardProps {
  model: Model;
  /** Of a GPU by its UUID. */
  nameOf: (uuid: string) => string;
  onChange: () => void;
}

function ModelCard({ model, nameOf, onChange }: CardProps) {
  const [error, setError] = useState<Error | null>(null);
  const [isTrying, setTrying] = useState(false);
  const isLoaded = model.replicas.length > 0;
  const act = (action: string) => async () => {
    await send("POST", `/api/v1/models/${model.name}/${action}`);
    onChange();
  };
  return (
    <article class="card" aria-label={model.name}>
      <div class="row wide">
        <strong class="cut">{model.name}</strong>
        <span class="row">
          {model.pinned && <Badge>pinned</Badge>}
          <Badge tone={toneOf(model.state)}>{model.state}</Badge>
        </span>
      </div>
      <dl class="facts">
        <dt>Engine</dt>
        <dd>{model.engine}</dd>
        <dt>Needs</dt>
        <dd>
          {model.memory_gb} GB on {model.gpus} GPU{model.gpus === 1 ? "" : "s"}
        </dd>
        <dt>Loaded on</dt>
        <dd>
          {isLoaded
            ? model.replicas.map(({ gpus }) => gpus.map(nameOf).join(", ")).join("; ")
            : "–"}
        </dd>
        <dt>Loads in</dt>
        <dd>{format.duration(model.boot_s)}</dd>
        <dt>Prompts</dt>
        <dd>
          {format.count(model.waiting)} waiting, {format.count(model.answered)} answered
        </dd>
      </dl>
      {model.why_waiting && <p class="quiet">{model.why_waiting}</p>}
      {model.problem && <p class="error">{model.problem}</p>}
      <ErrorNote error={error} />
      <div class="row wrap">
        {session.may("member") && (
          <button
            type="button"
            class="button"
            aria-expanded={isTrying}
            onClick={() => setTrying(!isTrying)}
          >
            Try a prompt
          </button>
        )}
        {session.may("maintainer") && (
          <>
            <ActionButton act={act(isLoaded ? "unload" : "load")} onError={setError}>
              {isLoaded ? "Unload" : "Load"}
            </ActionButton>
            <ActionButton act={act(model.pinned ? "unpin" : "pin")} onError={setError}>
              {model.pinned ? "Unpin" : "Pin"}
            </ActionButton>
          </>
        )}
      </div>
      {isTrying && <PromptForm model={model.name} />}
    </article>
  );
}
