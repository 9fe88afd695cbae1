// The packages that a new job gets: a file of its program names them.

import type { Schemas } from "../api/client";
import type { Files } from "./carrier";
import type { Form } from "./form";

const NAMES_PACKAGES =
  /(^|\/)(uv\.lock|pyproject\.toml|environment\.ya?ml|requirements[^/]*\.txt)$/;
/** What may belong to such a file. */
const BESIDE = /\.(txt|in|toml|lock|ya?ml)$|(^|\/)\.python-version$/;

/** The files that name packages. */
export function listsAmong(files: Files): string[] {
  return Object.keys(files.text).filter((name) => NAMES_PACKAGES.test(name));
}

/** Whether it is the list of a copied job, and no file. */
export function isStored(packages: string): boolean {
  return /^[0-9a-f]{64}$/.test(packages);
}

/** What is to be stored before the job is submitted; null for nothing. */
export function listToStore({ packages, files }: Form): Schemas["PackageFiles"] | null {
  if (!packages || isStored(packages)) return null;
  const texts = Object.entries(files.text);
  const related = texts.filter(([name]) => name === packages || BESIDE.test(name));
  return { main: packages, files: Object.fromEntries(related) };
}
