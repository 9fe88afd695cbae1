// Light or dark: as the reader's system is, or as they chose here.

import { Store } from "./store";

export type Theme = "light" | "dark";
const KEY = "gpuyard-theme";
const isDark = window.matchMedia("(prefers-color-scheme: dark)");

export const theme = new Store<Theme>(chosen() ?? system());
theme.watch(show);
isDark.addEventListener("change", () => chosen() ?? theme.set(system()));
show(theme.value);

function system(): Theme {
  return isDark.matches ? "dark" : "light";
}

function chosen(): Theme | null {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : null;
}

function show(value: Theme): void {
  document.documentElement.dataset["theme"] = value;
}

export function switchTheme(): void {
  const next = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, next);
  theme.set(next);
}
