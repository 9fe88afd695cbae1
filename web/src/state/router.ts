// The page's address says which screen it shows, and its query what that is about.

import { useStore, Store } from "./store";

export interface Place {
  path: string;
  query: URLSearchParams;
}

const place = new Store<Place>(here());
window.addEventListener("popstate", () => place.set(here()));

function here(): Place {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export function usePlace(): Place {
  return useStore(place);
}

/** Show another screen. With `replace`, the way back does not lead here. */
export function go(address: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  place.set(here());
}

/** Change some words of the query; an empty one is taken away. */
export function setQuery(changes: Record<string, string>): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  go(text ? `${location.pathname}?${text}` : location.pathname, { replace: true });
}

/** Follow links of the page without loading it anew. */
export function followLinks(event: MouseEvent): void {
  const link = (event.target as Element).closest("a");
  const isPlain =
    event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !isPlain || link.target || link.hasAttribute("download")) return;
  if (link.origin !== location.origin || !link.dataset["screen"]) return;
  event.preventDefault();
  go(link.pathname + link.search);
}
