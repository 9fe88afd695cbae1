// What people type, as fields of a JobSpec, and back.

export type Spec = Record<string, unknown>;

export function text(value: number | string | null | undefined): string {
  return value === null || value === undefined ? "" : String(value);
}

export function number(text: string): number | undefined {
  return text.trim() === "" ? undefined : Number(text);
}

/** A figure in the usual unit, or with its own, such as 2h or 200MB: the server knows both. */
export function quantity(text: string): number | string | undefined {
  const isNumber = text.trim() !== "" && Number.isFinite(Number(text));
  return isNumber ? Number(text) : text.trim();
}

/** What is filled in. */
export function given(fields: Spec): Spec {
  const isGiven = (value: unknown) =>
    value !== undefined && value !== "" && !(Array.isArray(value) && value.length === 0);
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => isGiven(value)));
}

/** `fields`, unless there are none. */
export function inUse<T>(fields: Record<string, T>): Record<string, T> | undefined {
  return Object.keys(fields).length > 0 ? fields : undefined;
}

export function without<T>(thing: Record<string, T>, names: readonly string[]): Record<string, T> {
  return Object.fromEntries(Object.entries(thing).filter(([name]) => !names.includes(name)));
}
