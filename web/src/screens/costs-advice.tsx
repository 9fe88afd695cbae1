// What could have cost less, from what was measured.

import type { Schemas } from "../api/client";
import * as format from "../format";
import { useResource } from "../state/resource";
import { Card, Empty, Found, Link } from "../ui/parts";

type Report = Schemas["CostAdviceReport"];
const MOST = 10;

export function Advice({ from }: { from: number }) {
  const found = useResource<Report>("/api/v1/costs/advice", { from });
  const items = (found.value?.items ?? []).slice(0, MOST);
  return (
    <Card title="What could have cost less">
      <Found of={found} />
      {found.value && items.length === 0 && (
        <Empty>Nothing that was measured in this time says so.</Empty>
      )}
      {items.length > 0 && (
        <div class="scrolls" role="region" aria-label="What could have cost less" tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th class="named">Program</th>
                <th>User</th>
                <th class="words">Measured</th>
                <th class="words">What to do</th>
                <th class="number">Cost</th>
                <th class="number">At most saved</th>
              </tr>
            </thead>
            <tbody>
              {items.map((item) => (
                <tr key={`${item.topic} ${item.user} ${item.program} ${item.currency}`}>
                  <td>
                    {item.jobs?.[0] ? (
                      <Link to={`/jobs/${item.jobs[0]}`}>{item.program}</Link>
                    ) : (
                      item.program
                    )}
                  </td>
                  <td>{item.user}</td>
                  <td class="words">{item.measured}</td>
                  <td class="words">{item.remedy}</td>
                  <td class="number">{format.cents(item.amount, item.currency)}</td>
                  <td class="number">{format.cents(item.saved, item.currency)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}
