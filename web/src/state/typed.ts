// What somebody types into the fields of a form.

import { useState } from "preact/hooks";

/** The texts of a form's fields, and what ties each of them to its field. */
export function useTyped<T extends Record<string, string>>(before: T) {
  const [typed, setTyped] = useState(before);
  const bound = (field: keyof T & string) => ({
    value: typed[field]!,
    onInput: (value: string) => setTyped({ ...typed, [field]: value }),
  });
  return { typed, bound };
}
