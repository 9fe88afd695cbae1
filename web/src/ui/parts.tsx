// The components that all screens are made of.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "../api/client";
import { useCentred } from "./centre";

type Children = { children?: ComponentChildren };
export type Tone = "plain" | "good" | "busy" | "warn" | "bad";

export function Badge({ tone = "plain", children }: Children & { tone?: Tone }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

const TONES: Record<string, Tone> = {
  running: "busy",
  assigned: "busy",
  completed: "good",
  failed: "bad",
  timed_out: "bad",
  unknown: "warn",
  cancelled: "plain",
  queued: "plain",
};

/** A job that is held waits in the queue, but not for its turn. */
export function StateBadge({ state, isHeld }: { state: string; isHeld?: boolean }) {
  const shown = isHeld && state === "queued" ? "held" : state.replaceAll("_", " ");
  return <Badge tone={TONES[state] ?? "plain"}>{shown}</Badge>;
}

/** A bar that is filled to `share`, between 0 and 1. */
export function Meter({ share, label, quiet }: { share: number; label: string; quiet?: boolean }) {
  const percent = Math.round(Math.min(Math.max(share, 0), 1) * 100);
  return (
    <div
      class={quiet ? "meter quiet" : "meter"}
      role="progressbar"
      aria-label={label}
      aria-valuenow={percent}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}

export function Card({
  title,
  action,
  children,
}: Children & { title?: string; action?: ComponentChildren }) {
  return (
    <section class="card">
      {title !== undefined && (
        <div class="row wide">
          <h2>{title}</h2>
          {action}
        </div>
      )}
      {children}
    </section>
  );
}

export function Empty({ children }: Children) {
  return <div class="empty">{children}</div>;
}

/** What went wrong, and what to do. */
export function ErrorNote({ error }: { error: Error | null }) {
  if (error === null) return null;
  return (
    <div class="error" role="alert">
      <p>{error.message}</p>
      {error instanceof Problem && error.remedy && <p>{error.remedy}</p>}
    </div>
  );
}

/** What the server says at first: nothing yet, or what went wrong. */
export function Found({ of }: { of: { value?: unknown; error: Error | null } }) {
  if (of.error) return <ErrorNote error={of.error} />;
  return of.value === null ? <Loading /> : null;
}

/** Is seen only where it takes long. */
export function Loading() {
  return <p class="quiet late">Loading …</p>;
}

/** Work that takes a while: it does not begin twice at once, and says what failed. */
export function useAction(
  act: () => Promise<unknown>,
  onError?: (error: Error | null) => void,
): { isBusy: boolean; begin: () => void } {
  const [isBusy, setBusy] = useState(false);
  const isUnderWay = useRef(false);
  async function work(): Promise<void> {
    if (isUnderWay.current) return;
    isUnderWay.current = true;
    setBusy(true);
    onError?.(null);
    try {
      await act();
    } catch (error) {
      onError?.(error as Error);
    }
    isUnderWay.current = false;
    setBusy(false);
  }
  return { isBusy, begin: () => void work() };
}

/** A button whose work takes a while. Meanwhile it keeps the keyboard: a button that is
 * disabled would lose it. */
export function ActionButton(
  props: Children & {
    act: () => Promise<unknown>;
    kind?: "primary" | "danger";
    onError?: (error: Error | null) => void;
  },
) {
  const { isBusy, begin } = useAction(props.act, props.onError);
  return (
    <button
      type="button"
      class={`button ${props.kind ?? ""}`}
      aria-disabled={isBusy}
      onClick={begin}
    >
      {props.children}
    </button>
  );
}

/** A link to another screen of the page. */
export function Link({
  to,
  class: name,
  current,
  children,
}: Children & { to: string; class?: string; current?: boolean }) {
  return (
    <a href={to} data-screen="yes" class={name} aria-current={current ? "page" : undefined}>
      {children}
    </a>
  );
}

const STEPS: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1 };

export function Tabs<T extends string>(props: {
  label: string;
  names: readonly T[];
  chosen: T;
  onChoose: (name: T) => void;
  /** What stands on a tab, if that is not its name. */
  titleOf?: (name: T) => string;
}) {
  const row = useRef<HTMLDivElement>(null);
  useCentred(row, "[aria-selected=true]", props.chosen);
  /** The arrows lead from tab to tab, and the key Tab out of them. */
  function move(event: KeyboardEvent): void {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const { names, chosen } = props;
    const next = (names.indexOf(chosen) + step + names.length) % names.length;
    row.current!.querySelectorAll<HTMLElement>("[role=tab]")[next]!.focus();
    props.onChoose(names[next]!);
  }
  return (
    <div ref={row} class="tabs" role="tablist" aria-label={props.label} onKeyDown={move}>
      {props.names.map((name) => (
        <button
          key={name}
          type="button"
          role="tab"
          tabIndex={name === props.chosen ? 0 : -1}
          aria-selected={name === props.chosen}
          onClick={() => props.onChoose(name)}
        >
          {props.titleOf?.(name) ?? name}
        </button>
      ))}
    </div>
  );
}

/** A dialog over the page, which holds the keyboard until it is closed, and then gives it back
 * to what had it. */
export function Dialog({
  title,
  onClose,
  children,
}: Children & { title: string; onClose?: () => void }) {
  const element = useRef<HTMLDialogElement>(null);
  const leave = useRef(onClose);
  leave.current = onClose;
  useEffect(() => {
    const dialog = element.current!;
    let isOver = false;
    dialog.addEventListener("close", () => {
      // Who presses Escape twice closes it in some browsers, whatever the page says.
      if (isOver) return;
      if (leave.current) leave.current();
      else dialog.showModal();
    });
    dialog.showModal();
    return () => {
      isOver = true;
      dialog.close();
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose?.();
      }}
    >
      <div class="stack">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}
