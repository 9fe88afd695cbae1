// What a program needs, read off its text, with the lines that say so.

import * as format from "../format";
import type { Answer } from "../state/answer";
import { Badge, Card, ErrorNote, type Tone } from "../ui/parts";

/** See `POST /api/v1/recommendations`. */
export interface Recommendation {
  tier: string | null;
  needs: { gpus: number; nodes: number; gpu_memory_gb: number | null } | null;
  parameters: number | null;
  needed_gb: number | null;
  confidence: string;
  confidence_reasons: string[];
  lines: { path: string | null; line: number | null; code: string | null; says: string }[];
  unknown: string[];
  warnings: string[];
  tiers: SizeRow[];
  program_needs: unknown;
}

export interface SizeRow {
  id: string;
  units: number;
  suits: boolean;
  reason: string | null;
  per_hour: number;
  hours: number | null;
  cost: number | null;
  currency: string;
}

const TONES: Record<string, Tone> = { high: "good", medium: "busy", low: "warn" };

export function RecommendationCard({
  answer,
  onUse,
}: {
  answer: Answer<Recommendation>;
  onUse: (found: Recommendation) => void;
}) {
  const found = answer.value;
  return (
    <Card
      title="What the program needs"
      action={
        found && (
          <Badge tone={TONES[found.confidence] ?? "plain"}>{found.confidence} confidence</Badge>
        )
      }
    >
      <div class="stack" aria-live="polite" aria-busy={answer.isAsking}>
        <ErrorNote error={answer.error} />
        {!found && answer.isAsking && <p class="quiet">Reading it…</p>}
        {found && <Found found={found} onUse={onUse} />}
      </div>
    </Card>
  );
}

function Found({ found, onUse }: { found: Recommendation; onUse: (it: Recommendation) => void }) {
  return (
    <>
      <div class="row wide wrap">
        <strong>{inWords(found)}</strong>
        {found.needs && (
          <button type="button" class="button" onClick={() => onUse(found)}>
            Use this
          </button>
        )}
      </div>
      {found.warnings.map((warning) => (
        <p key={warning} class="warning">
          {warning}
        </p>
      ))}
      <ul class="plain-list">
        {found.lines.map((line, at) => (
          <li key={at}>
            {line.path && (
              <span class="mono quiet">
                {line.path}:{line.line}{" "}
              </span>
            )}
            {line.says}
            {line.code && <code class="block">{line.code}</code>}
          </li>
        ))}
      </ul>
      {found.confidence_reasons.length > 0 && (
        <p class="quiet">
          Why {found.confidence}: {found.confidence_reasons.join("; ")}.
        </p>
      )}
      {found.unknown.length > 0 && <p class="quiet">Not known: {found.unknown.join("; ")}.</p>}
    </>
  );
}

function inWords({ needs, needed_gb: neededGb }: Recommendation): string {
  if (needs === null) return "It does not say what it needs.";
  if (needs.gpus === 0) return "No GPU";
  const gpus = needs.gpus === 1 ? "1 GPU" : `${needs.gpus} GPUs`;
  const memory = needs.gpu_memory_gb ?? neededGb;
  const each = needs.gpus === 1 ? "" : " each";
  const machines = needs.nodes > 1 ? ` on each of ${needs.nodes} machines` : "";
  return memory
    ? `${gpus} with ${format.figure(memory)} GB${each}${machines}`
    : `${gpus}${machines}`;
}
