// A field that says what others have written there, or what there is.

import type { ComponentProps } from "preact";
import { useId } from "preact/hooks";

import { Field } from "../ui/fields";
import { list } from "./lists";

/** With `several`, it takes words with spaces between them, and suggests the last one. */
export function Suggested({
  options,
  several = false,
  ...field
}: ComponentProps<typeof Field> & { options: readonly string[]; several?: boolean }) {
  const id = useId();
  const before = several ? field.value.replace(/\S*$/, "") : "";
  const chosen = list(before);
  const offered = [...new Set(options)].filter((one) => one && !chosen.includes(one));
  return (
    <>
      <Field {...field} list={id} />
      <datalist id={id}>
        {offered.map((one) => (
          <option key={one} value={before + one} />
        ))}
      </datalist>
    </>
  );
}
