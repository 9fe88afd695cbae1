// The frame around all screens: the way between them, and who is signed in.

import type { ComponentChildren, ComponentType } from "preact";
import { lazy, Suspense } from "preact/compat";
import { useEffect, useErrorBoundary, useRef } from "preact/hooks";

import { signOut } from "./api/client";
import { feed } from "./api/events";
import { JobsScreen } from "./screens/jobs";
import { OverviewScreen } from "./screens/overview";
import { SignInForm, SignInScreen } from "./screens/sign-in";
import { followLinks, usePlace } from "./state/router";
import { session, type WhoAmI } from "./state/session";
import { useStore } from "./state/store";
import { switchTheme, theme } from "./state/theme";
import { useCentred } from "./ui/centre";
import { Icon, type IconName, Mark } from "./ui/icons";
import { Dialog, Empty, Link, Loading } from "./ui/parts";

type ScreenComponent = ComponentType<{ words: string[] }>;

interface Screen {
  path: RegExp;
  screen: ScreenComponent;
}

/** A screen that is loaded when it is first shown. */
function later(load: () => Promise<{ default: ScreenComponent }>): ScreenComponent {
  return lazy(() => load().catch(() => ({ default: NotLoaded })));
}

// Charts and logs are loaded with the first screen that shows some.
const JobScreen = later(() => import("./screens/job"));
const SubmitScreen = later(() => import("./screens/submit"));
const ModelsScreen = later(() => import("./screens/models"));
const MachinesScreen = later(() => import("./screens/machines"));
const CostsScreen = later(() => import("./screens/costs"));
const SweepsScreen = later(() => import("./screens/sweeps"));
const SweepScreen = later(() => import("./screens/sweep"));
const FlowScreen = later(() => import("./screens/flow"));
const PeopleScreen = later(() => import("./screens/people"));
const AuditScreen = later(() => import("./screens/audit"));
const StudiesScreen = later(() => import("./screens/studies"));
const VerificationScreen = later(() => import("./screens/verification"));
const BatchesScreen = later(() => import("./screens/batches"));
const DataScreen = later(() => import("./screens/data"));
const OffersScreen = later(() => import("./screens/offers"));
const CloudsScreen = later(() => import("./screens/clouds"));
const SchedulesScreen = later(() => import("./screens/schedules"));
const DesignScreen = later(() => import("./screens/design"));

const SCREENS: readonly Screen[] = [
  { path: /^\/$/, screen: OverviewScreen },
  { path: /^\/jobs\/?$/, screen: JobsScreen },
  { path: /^\/jobs\/([^/]+)\/?$/, screen: JobScreen },
  { path: /^\/submit\/?$/, screen: SubmitScreen },
  { path: /^\/schedules\/?$/, screen: SchedulesScreen },
  { path: /^\/models\/?$/, screen: ModelsScreen },
  { path: /^\/machines\/?$/, screen: MachinesScreen },
  { path: /^\/costs\/?$/, screen: CostsScreen },
  { path: /^\/sweeps\/?$/, screen: SweepsScreen },
  { path: /^\/sweeps\/flow$/, screen: FlowScreen },
  { path: /^\/sweeps\/([^/]+)\/?$/, screen: SweepScreen },
  { path: /^\/people\/?$/, screen: PeopleScreen },
  { path: /^\/audit\/?$/, screen: AuditScreen },
  { path: /^\/studies\/?$/, screen: StudiesScreen },
  { path: /^\/verification\/?$/, screen: VerificationScreen },
  { path: /^\/batches(?:\/([^/]+))?\/?$/, screen: BatchesScreen },
  { path: /^\/data\/?$/, screen: DataScreen },
  { path: /^\/offers\/?$/, screen: OffersScreen },
  { path: /^\/clouds\/?$/, screen: CloudsScreen },
  { path: /^\/ui\/?$/, screen: DesignScreen },
];

/** The ways to the screens, in groups: work, what it is done with, and the lab. */
const LINKS: readonly (readonly (readonly [string, string, IconName])[])[] = [
  [
    ["/", "Overview", "overview"],
    ["/jobs", "Jobs", "jobs"],
    ["/submit", "Submit", "submit"],
    ["/schedules", "Schedules", "schedules"],
    ["/sweeps", "Sweeps and flows", "sweeps"],
    ["/batches", "Batches", "batches"],
    ["/studies", "Studies", "studies"],
  ],
  [
    ["/data", "Data", "data"],
    ["/models", "Models", "models"],
    ["/machines", "Machines", "machines"],
    ["/offers", "Offers", "offers"],
    ["/clouds", "Clouds and pools", "clouds"],
    ["/verification", "Verification", "verification"],
  ],
  [
    ["/costs", "Costs", "costs"],
    ["/people", "People", "people"],
    ["/audit", "Audit", "audit"],
  ],
];

export function Page() {
  const state = useStore(session.state);
  switch (state.kind) {
    case "asking":
      return null;
    case "down":
      return (
        <Empty>
          <p>
            The server does not answer. Is it running? Start it with <code>gpuyard up</code>.
          </p>
          <button type="button" class="button" onClick={() => location.reload()}>
            Try again
          </button>
        </Empty>
      );
    case "out":
      return <SignInScreen />;
    default:
      return <Frame who={state.who} isExpired={state.kind === "expired"} />;
  }
}

function Frame({ who, isExpired }: { who: WhoAmI; isExpired: boolean }) {
  const { path } = usePlace();
  const found = SCREENS.map(({ path: pattern, screen }) => ({
    screen,
    match: pattern.exec(path),
  }));
  const shown = found.find(({ match }) => match !== null);
  const main = useRef<HTMLElement>(null);
  const former = useRef(path);
  useEffect(() => {
    if (former.current === path) return;
    former.current = path;
    // A new screen begins at its top, also for keyboards and screen readers.
    window.scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [path]);
  return (
    <div class="frame" onClick={followLinks}>
      <button type="button" class="button skip" onClick={() => main.current?.focus()}>
        To the content
      </button>
      <Rail path={path} who={who} />
      <div>
        <ConnectionNotice />
        <LinkNotice />
        <main ref={main} class="content" tabIndex={-1}>
          <Guarded key={path}>
            <Suspense fallback={<Loading />}>
              {shown ? draw(shown.screen, shown.match!.slice(1)) : <Missing />}
            </Suspense>
          </Guarded>
        </main>
      </div>
      {isExpired && (
        <Dialog title="You were signed out">
          <p class="quiet">Sign in again. What you typed is still there.</p>
          <SignInForm />
        </Dialog>
      )}
    </div>
  );
}

function draw(Shown: ComponentType<{ words: string[] }>, words: string[]): ComponentChildren {
  return <Shown words={words} key={words.join("/")} />;
}

function Rail({ path, who }: { path: string; who: WhoAmI }) {
  const shade = useStore(theme);
  const rail = useRef<HTMLElement>(null);
  useCentred(rail, "[aria-current]", path);
  useEffect(() => {
    const [, name] = LINKS.flat().find(([to]) => isAt(to, path)) ?? [];
    document.title = name ? `${name} · gpuyard` : "gpuyard";
  }, [path]);
  return (
    <nav ref={rail} class="rail" aria-label="Screens">
      <Link to="/" class="brand">
        <Mark />
        gpuyard
      </Link>
      {LINKS.map((links) => (
        <div key={links[0]![0]} class="group">
          {links.map(([to, name, icon]) => (
            <Link key={to} to={to} class="screen" current={isAt(to, path)}>
              <Icon name={icon} />
              {name}
            </Link>
          ))}
        </div>
      ))}
      <div class="foot">
        <span class="quiet cut">
          {who.user ?? "owner"} · {who.role}
        </span>
        <div class="row">
          <button type="button" class="button plain" onClick={switchTheme}>
            {shade === "dark" ? "Light" : "Dark"}
          </button>
          <button type="button" class="button plain" onClick={() => void leave()}>
            Sign out
          </button>
        </div>
      </div>
    </nav>
  );
}

function isAt(link: string, path: string): boolean {
  return link === "/" ? path === "/" : path.startsWith(link);
}

/** If the server is gone, the page says so, and who leaves is still signed in. */
async function leave(): Promise<void> {
  try {
    await signOut();
  } catch {
    return;
  }
  location.assign("/");
}

function ConnectionNotice() {
  const connection = useStore(feed.connection);
  if (connection !== "lost") return null;
  return (
    <div class="notice" role="status">
      The server does not answer. What you see may be old; the page goes on by itself.
    </div>
  );
}

function LinkNotice() {
  const fault = useStore(session.linkFault);
  if (fault === null) return null;
  return (
    <div class="notice" role="alert">
      {fault.detail} {fault.remedy}{" "}
      <button type="button" class="button plain" onClick={() => session.linkFault.set(null)}>
        Close
      </button>
    </div>
  );
}

/** A fault of one screen takes no other one along. */
function Guarded({ children }: { children: ComponentChildren }) {
  const [error] = useErrorBoundary((fault) => reportError(fault));
  return <>{error ? <NotLoaded /> : children}</>;
}

/** The server is gone, or is a newer one, whose screens have other names. */
function NotLoaded() {
  return (
    <Empty>
      <p>This screen cannot be shown now.</p>
      <button type="button" class="button" onClick={() => location.reload()}>
        Load the page anew
      </button>
    </Empty>
  );
}

function Missing() {
  return (
    <Empty>
      Nothing is at this address. <Link to="/">Go to the overview</Link>
    </Empty>
  );
}
