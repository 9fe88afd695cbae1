// Lines of a form that somebody adds and takes away.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

import { FaultNote } from "./fields";

/** The keyboard follows: to a new line, and back to the button that adds one. */
export function Lines<T>(props: {
  label: string;
  /** What the button says that adds a line. */
  verb: string;
  lines: readonly T[];
  /** A line in which nothing is filled in yet. */
  blank: T;
  nameOf: (line: T) => string;
  fault: string;
  draw: (line: T, change: (line: T) => void) => ComponentChildren;
  onLines: (lines: readonly T[]) => void;
}) {
  const { lines, fault, onLines } = props;
  const id = useId();
  const drawn = useRef<HTMLDivElement>(null);
  const adder = useRef<HTMLButtonElement>(null);
  const isAdding = useRef(false);
  useEffect(() => {
    if (!isAdding.current) return;
    isAdding.current = false;
    drawn.current?.lastElementChild?.querySelector<HTMLElement>("input, select")?.focus();
  }, [lines.length]);

  function add(): void {
    isAdding.current = true;
    onLines([...lines, props.blank]);
  }

  function remove(at: number): void {
    adder.current!.focus();
    onLines(lines.filter((_, one) => one !== at));
  }

  return (
    <div
      class="stack"
      role="group"
      aria-label={props.label}
      aria-describedby={fault ? id : undefined}
    >
      {lines.length > 0 && (
        <div ref={drawn} class="stack">
          {lines.map((line, at) => (
            <div key={at} class="row wrap entry end">
              {props.draw(line, (next) =>
                onLines(lines.map((one, index) => (index === at ? next : one))),
              )}
              <button type="button" class="button" onClick={() => remove(at)}>
                Remove<span class="hidden-text"> {props.nameOf(line)}</span>
              </button>
            </div>
          ))}
        </div>
      )}
      <FaultNote id={id} fault={fault} />
      <div>
        <button ref={adder} type="button" class="button" onClick={add}>
          {props.verb}
        </button>
      </div>
    </div>
  );
}
