// Who may use this instance, in which projects, with which tokens, and what they have reserved.

import type { FunctionComponent } from "preact";

import { setQuery, usePlace } from "../state/router";
import { Tabs } from "../ui/parts";
import { ProjectsTab } from "./people-projects";
import { ReservationsTab } from "./people-reservations";
import { SharesTab } from "./people-shares";
import { TokensTab } from "./people-tokens";
import { UsersTab } from "./people-users";
import "../ui/panels.css";

const TABS = ["users", "projects", "tokens", "reservations", "shares"] as const;
const SHOWN: Record<(typeof TABS)[number], FunctionComponent> = {
  users: UsersTab,
  projects: ProjectsTab,
  tokens: TokensTab,
  reservations: ReservationsTab,
  shares: SharesTab,
};

export default function PeopleScreen() {
  const { query } = usePlace();
  const tab = TABS.find((one) => one === query.get("show")) ?? "users";
  const Shown = SHOWN[tab];
  return (
    <>
      <h1>People</h1>
      <Tabs
        label="What to show"
        names={TABS}
        chosen={tab}
        onChoose={(one) => setQuery({ show: one })}
      />
      <Shown key={tab} />
    </>
  );
}
