// How the parts of the form read and change it.

import type { Faults } from "./faults";
import type { Form } from "./form";

export interface Editing {
  form: Form;
  faults: Faults;
  onForm: (form: Form) => void;
}

/** The fields of the form that are texts. */
export type TextName = {
  [Name in keyof Form]: Form[Name] extends string ? Name : never;
}[keyof Form];

/** What a field shows of the form, and what becomes of what is typed there. */
export function bound({ form, faults, onForm }: Editing, name: TextName) {
  return {
    value: form[name],
    fault: faults[name] ?? "",
    onInput: (value: string) => onForm({ ...form, [name]: value }),
  };
}

/** Whether one of these fields is wrong. */
export function isWrong({ faults }: Editing, names: readonly (keyof Form)[]): boolean {
  return names.some((name) => faults[name]);
}

/** Whether something stands in one of these fields. */
export function isFilled({ form }: Editing, names: readonly (keyof Form)[]): boolean {
  return names.some((name) => {
    const value = form[name];
    if (typeof value === "string") return value.trim() !== "";
    return Array.isArray(value) ? value.length > 0 : Boolean(value);
  });
}
