// Fair shares: what stands to whom, and what they have used of it.

import type { Schemas } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Card, Empty, Found, Meter } from "../ui/parts";

type FairShare = Schemas["FairShare"];

export function SharesTab() {
  const found = useResource<Schemas["FairShares"]>("/api/v1/shares", {}, { everyS: 10 });
  const shares = found.value;
  return (
    <Card title="Fair shares">
      <Found of={found} />
      {shares && shares.policy !== "fair" && (
        <Empty>
          The order of the queue is <code>{shares.policy}</code>: shares count only where the
          settings say <code>policy = "fair"</code>.
        </Empty>
      )}
      {shares?.policy === "fair" && shares.items.length === 0 && (
        <Empty>Nobody has a share, a job or used anything yet.</Empty>
      )}
      {shares && shares.items.length > 0 && <ShareTable shares={shares} />}
    </Card>
  );
}

function ShareTable({ shares }: { shares: Schemas["FairShares"] }) {
  return (
    <>
      <div class="scrolls" role="region" aria-label="Fair shares" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th>Who</th>
              <th class="number">Shares</th>
              <th class="bar">Due</th>
              <th class="bar">Used</th>
              <th class="number">Of its share</th>
              <th class="number">GPU hours</th>
            </tr>
          </thead>
          <tbody>
            {shares.items.map((share) => (
              <ShareLine key={`${share.organisation} ${whoseOf(share)}`} share={share} />
            ))}
          </tbody>
        </table>
      </div>
      <p class="quiet small">
        Whoever has used least of its share comes first. What was used counts half after{" "}
        {format.duration(shares.half_life_s)}.
      </p>
    </>
  );
}

function ShareLine({ share }: { share: FairShare }) {
  const whose = whoseOf(share);
  return (
    <tr>
      <td>
        <span class="quiet">{share.level}</span> {whose}
      </td>
      <td class="number">{format.figure(share.shares)}</td>
      <td class="bar">
        <Part part={share.due} label={`Due to ${whose}`} quiet />
      </td>
      <td class="bar">
        <Part part={share.used} label={`Used by ${whose}`} />
      </td>
      <td class="number">
        {share.times === null || share.times === undefined
          ? "–"
          : `${format.figure(Number(share.times.toFixed(2)))} ×`}
      </td>
      <td class="number">{format.figure(share.gpu_hours)}</td>
    </tr>
  );
}

function Part({ part, label, quiet }: { part: number; label: string; quiet?: boolean }) {
  return (
    <span class="stack tight">
      <span>{Math.round(part * 100)}&nbsp;%</span>
      <Meter share={part} label={label} quiet={quiet ?? false} />
    </span>
  );
}

/** `physics`, `vision`, `ana in vision`. */
function whoseOf(share: FairShare): string {
  if (share.level === "organisation") return share.organisation ?? "";
  if (share.level === "project") return share.project ?? "";
  return share.project ? `${share.user} in ${share.project}` : (share.user ?? "");
}
