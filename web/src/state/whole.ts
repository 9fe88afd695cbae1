// A listing that a screen shows as a whole: all of its pages, up to a limit.

import { useEffect } from "preact/hooks";

import type { Query } from "../api/client";
import type { ServerEvent } from "../api/events";
import { type Listing, useListing } from "./pages";

/** The newest items of a listing, at least `most` of them if there are so many. */
export function useWhole<T extends { id: string }>(
  path: string,
  query: Query,
  when: (event: ServerEvent) => boolean,
  most = 2000,
): Listing<T> {
  const listing = useListing<T>(path, query, when);
  const count = listing.items.length;
  useEffect(() => {
    // All of it is in sight, so all of it is kept up to date.
    listing.see(0, count);
    if (count > 0 && count < most && listing.hasMore) listing.more();
  }, [count]);
  return listing;
}
