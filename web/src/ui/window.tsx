// A list of which only the lines in sight are in the document.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const BEYOND = 12;

interface Props<T> {
  items: readonly T[];
  lineHeight: number;
  class: string;
  label: string;
  draw: (item: T, index: number) => ComponentChildren;
  /** The last lines have come into sight. */
  onEnd?: () => void;
  /** These lines are in sight: from `first` to before `last`. */
  onSight?: (first: number, last: number) => void;
}

export function Windowed<T>({
  items,
  lineHeight,
  class: name,
  label,
  draw,
  onEnd,
  onSight,
}: Props<T>) {
  const element = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });

  useEffect(() => {
    const box = element.current!;
    const look = () => setView({ top: box.scrollTop, height: box.clientHeight });
    const resized = new ResizeObserver(look);
    box.addEventListener("scroll", look, { passive: true });
    resized.observe(box);
    return () => {
      box.removeEventListener("scroll", look);
      resized.disconnect();
    };
  }, []);

  const first = Math.max(0, Math.floor(view.top / lineHeight) - BEYOND);
  const last = Math.min(items.length, Math.ceil((view.top + view.height) / lineHeight) + BEYOND);
  useEffect(() => {
    onSight?.(first, last);
    if (last >= items.length) onEnd?.();
  }, [first, last, items.length]);

  return (
    <div ref={element} class={name} role="list" aria-label={label} tabIndex={0}>
      <div style={{ height: `${items.length * lineHeight}px`, position: "relative" }}>
        <div
          style={{
            position: "absolute",
            insetInline: "0",
            top: `${first * lineHeight}px`,
          }}
        >
          {items.slice(first, last).map((item, at) => draw(item, first + at))}
        </div>
      </div>
    </div>
  );
}
