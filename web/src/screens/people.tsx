// Who may use this instance, in which projects, with which tokens, and what they have reserved.

import type { FunctionComponent } from "preact";

import { setQuery, usePlace } from "../state/router";
import { Tabs } from "../ui/parts";
import { ProjectsTab } from "./people-projects";
import { ReservationsTab } from "./people-reservations";
import { SecretsTab } from "./people-secrets";
import { ServicesTab } from "./people-services";
import { SharesTab } from "./people-shares";
import { SignInsTab } from "./people-sign-ins";
import { TokensTab } from "./people-tokens";
import { UsersTab } from "./people-users";
import "../ui/panels.css";

const TABS = [
  "users",
  "projects",
  "service accounts",
  "tokens",
  "secrets",
  "sign-ins",
  "reservations",
  "shares",
] as const;
const SHOWN: Record<(typeof TABS)[number], FunctionComponent> = {
  users: UsersTab,
  projects: ProjectsTab,
  "service accounts": ServicesTab,
  tokens: TokensTab,
  secrets: SecretsTab,
  "sign-ins": SignInsTab,
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
