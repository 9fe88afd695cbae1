// A long listing, newest first, of which the API gives one page at a time.
//
// However long it has become, news make only the pages in sight be asked for again. A
// page begins behind the last id of the page before it, so each can be asked for alone.

import { useEffect, useRef, useState } from "preact/hooks";

import { AGAIN_MS, get, mayPass, type Query } from "../api/client";
import { feed, type ServerEvent } from "../api/events";

const PAGE = 200;
const SHORTEST_PAUSE_MS = 1000;

type Headers = Record<string, string>;

interface Item {
  id: string;
}

interface Page<T> {
  items: T[];
  next?: string | null;
}

/** A page with the cursor behind which it begins; the first page has none. */
interface KnownPage<T> extends Page<T> {
  cursor: string | undefined;
}

export interface Listing<T> {
  items: T[];
  /** Whether the API has more. */
  hasMore: boolean;
  error: Error | null;
  /** Load the next page. */
  more: () => void;
  /** Which items are in sight: from `first` to before `last`. */
  see: (first: number, last: number) => void;
  /** Ask again for what is in sight. */
  reload: () => void;
}

export function useListing<T extends Item>(
  path: string,
  query: Query,
  when: (event: ServerEvent) => boolean,
): Listing<T> {
  const [pages, setPages] = useState<Page<T>[]>([]);
  const [error, setError] = useState<Error | null>(null);
  const loader = useRef<Loader<T> | null>(null);

  useEffect(() => {
    setPages([]);
    const made = new Loader<T>(path, query, setPages, setError);
    loader.current = made;
    made.more();
    const ends = [
      feed.listen((event) => when(event) && made.soon()),
      feed.connection.watch((connection) => connection === "live" && made.soon()),
    ];
    return () => {
      ends.forEach((end) => end());
      made.end();
    };
  }, [path, JSON.stringify(query)]);

  return {
    items: pages.flatMap((page) => page.items),
    hasMore: pages.length === 0 || Boolean(pages.at(-1)?.next),
    error,
    more: () => loader.current?.more(),
    see: (first, last) => loader.current?.see(first, last),
    reload: () => loader.current?.now(),
  };
}

/** Loads a listing page by page, one request after the other. */
export class Loader<T extends Item> {
  private pages: KnownPage<T>[] = [];
  private inSight = { first: 0, last: 0 };
  private work: Promise<void> = Promise.resolve();
  private isOver = false;
  private isLoadingMore = false;
  private wantsMore = false;
  private askedAt = 0;
  private timer: ReturnType<typeof setTimeout> | 0 = 0;
  private again: ReturnType<typeof setTimeout> | 0 = 0;

  constructor(
    private path: string,
    private query: Query,
    private onPages: (pages: Page<T>[]) => void,
    private onError: (error: Error | null) => void,
  ) {}

  end(): void {
    this.isOver = true;
    clearTimeout(this.timer);
    clearTimeout(this.again);
  }

  see(first: number, last: number): void {
    this.inSight = { first, last };
  }

  more(): void {
    if (this.isLoadingMore) return;
    this.isLoadingMore = true;
    this.wantsMore = true;
    this.change(async () => {
      const last = this.pages.at(-1);
      const isWhole = last && !last.next;
      try {
        const next = isWhole ? null : await this.page(last?.next ?? undefined, feed.sharing(false));
        this.wantsMore = false;
        return next ? [...this.pages, next] : this.pages;
      } finally {
        this.isLoadingMore = false;
      }
    });
  }

  /** Ask again, but not for each of the events, which come in bursts. */
  soon(): void {
    if (this.timer) return;
    const wait = Math.max(0, this.askedAt + SHORTEST_PAUSE_MS - Date.now());
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.renew(feed.sharing(true));
    }, wait);
  }

  now(): void {
    this.renew({});
  }

  private renew(headers: Headers): void {
    this.change(async () => {
      const renewed = this.pages.map((page, at) => this.renewed(page, at, headers));
      return (await Promise.all(renewed)).flat();
    });
  }

  /** The page anew if it is in sight or the first one. */
  private async renewed(page: KnownPage<T>, at: number, headers: Headers): Promise<KnownPage<T>[]> {
    const before = this.pages.slice(0, at).reduce((sum, one) => sum + one.items.length, 0);
    const isInSight = before < this.inSight.last && before + page.items.length > this.inSight.first;
    if (at > 0 && !isInSight) return [page];
    return this.between(page.cursor, this.pages[at + 1]?.cursor, headers);
  }

  /** What there is behind `cursor` and up to `oldest`, whatever has come and gone there: one page
   * more often than not. */
  private async between(
    cursor: string | undefined,
    oldest: string | undefined,
    headers: Headers,
  ): Promise<KnownPage<T>[]> {
    const found = [await this.page(cursor, headers)];
    for (;;) {
      const last = found.at(-1)!;
      if (oldest === undefined) return found;
      // Ids begin with the time, so later ones are greater.
      if (!last.next || last.items.at(-1)!.id <= oldest) {
        last.items = last.items.filter((item) => item.id >= oldest);
        last.next = oldest;
        return found;
      }
      found.push(await this.page(last.next, headers));
    }
  }

  private async page(cursor: string | undefined, headers: Headers): Promise<KnownPage<T>> {
    const query = { ...this.query, limit: PAGE, cursor };
    const page = await get<Page<T>>(this.path, query, undefined, headers);
    return { ...page, cursor };
  }

  /** One change after the other. */
  private change(find: () => Promise<KnownPage<T>[]>): void {
    this.work = this.work.then(async () => {
      if (this.isOver) return;
      this.askedAt = Date.now();
      try {
        const pages = await find();
        if (this.isOver) return;
        this.pages = pages;
        this.onPages(pages);
        this.onError(null);
      } catch (error) {
        if (this.isOver) return;
        this.onError(error as Error);
        if (!this.again && mayPass(error)) this.again = setTimeout(() => this.repeat(), AGAIN_MS);
      }
    });
  }

  /** After a failure: no event need come that would ask again. */
  private repeat(): void {
    this.again = 0;
    if (this.wantsMore) this.more();
    else this.soon();
  }
}
