// A part of a form that few people need.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

/** It opens when it begins to hold something (`opens`), and when something in it is wrong. Who
 * looks opens and closes it besides. */
export function Folded(props: {
  title: string;
  opens?: boolean;
  isWrong: boolean;
  children: ComponentChildren;
}) {
  const { opens = false, isWrong } = props;
  const [isOpen, setOpen] = useState(opens || isWrong);
  useEffect(() => {
    if (opens) setOpen(true);
  }, [opens]);
  useEffect(() => {
    if (isWrong) setOpen(true);
  }, [isWrong]);
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.title}</summary>
      {isOpen && props.children}
    </details>
  );
}
