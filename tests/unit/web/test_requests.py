"""What the page asks its server: who has signed in, and which answer counts."""

from tests.support.page_code import evaluate

# Answers wait until they are given; what was asked for stands in `asked`.
BROWSER = """
globalThis.document = { visibilityState: "visible", addEventListener() {} };
globalThis.asked = [];
globalThis.fetch = (path, { signal } = {}) =>
  new Promise((resolve, reject) => {
    const answer = (body, status = 200) =>
      resolve(new Response(JSON.stringify(body), { status }));
    signal?.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
    asked.push({ path, answer });
  });
globalThis.soon = (ms = 0) => new Promise((resolve) => setTimeout(resolve, ms));
"""


def test_a_refusal_from_before_the_sign_in_signs_nobody_out() -> None:
    expression = """(async () => {
      let told = 0;
      onSignedOut(() => (told += 1));
      const found = get("/jobs");
      await soon();
      noteSignIn();
      asked[0].answer({}, 401);
      await soon();
      asked[1].answer("all");
      const refused = get("/gpus").catch((problem) => problem.status);
      await soon();
      asked[2].answer({}, 401);
      return [await found, await refused, told];
    })()"""
    found = evaluate(["api/client.ts"], expression, browser=BROWSER)
    assert found == ["all", 401, 1]


# A server with these items, newest first, and a listing of pages of 200 of them.
LISTING = """
  let items = Array.from({ length: 500 }, (_, at) => ({ id: String(999 - at) }));
  const fetched = [];
  globalThis.fetch = async (path) => {
    const query = new URL(path, "http://server").searchParams;
    fetched.push(path);
    const left = items.filter(({ id }) => id < (query.get("cursor") ?? "~"));
    const page = left.slice(0, Number(query.get("limit")));
    const next = left.length > page.length ? page.at(-1).id : null;
    return new Response(JSON.stringify({ items: page, next }));
  };
  let shown = [];
  const loader = new Loader("/jobs", {}, (pages) => (shown = pages), () => undefined);
  const ids = () => shown.flatMap((page) => page.items.map(({ id }) => id));
"""


def test_what_leaves_a_listing_or_comes_there_puts_nothing_else_wrong() -> None:
    expression = f"""(async () => {{
      {LISTING}
      for (const _ of [1, 2, 3]) {{ loader.more(); await soon(20); }}
      loader.see(0, 500);
      // As where the jobs that wait are listed, and many of them start.
      items.splice(220, 150);
      items.splice(10, 150);
      loader.now();
      await soon(20);
      const before = ids();
      const there = items.map(({{ id }}) => id);
      // As where those that run are listed.
      items = items.flatMap(({{ id }}) => [{{ id: `${{id}}b` }}, {{ id }}]);
      loader.now();
      await soon(20);
      const after = ids();
      return [before, there, after, items.map(({{ id }}) => id)];
    }})()"""
    before, there, after, there_then = evaluate(
        ["state/pages.ts"], expression, browser=BROWSER
    )
    assert before == there
    assert after == there_then


def test_a_page_that_is_on_its_way_is_not_asked_for_twice() -> None:
    expression = f"""(async () => {{
      {LISTING}
      loader.more();
      await Promise.resolve();
      loader.more();
      await soon(20);
      return fetched.length;
    }})()"""
    assert evaluate(["state/pages.ts"], expression, browser=BROWSER) == 1


def test_an_answer_overwrites_nothing_that_was_told_meanwhile() -> None:
    expression = """(async () => {
      const shown = [];
      const asking = new Asking("/gpus", {}, (value) => shown.push(value), () => undefined);
      asking.first();
      asking.take({ path: "/gpus", status: 200, body: "new" });
      asked[0].answer("old");
      await soon();
      asking.now();
      asked[1].answer("newer");
      await soon();
      return shown;
    })()"""
    found = evaluate(["state/resource.ts"], expression, browser=BROWSER)
    assert found == ["new", "newer"]


def test_what_nobody_looks_at_any_more_is_not_asked_again() -> None:
    expression = """(async () => {
      const asking = new Asking("/gpus", {}, () => 0, () => 0, 0);
      asking.first();
      asking.now();
      asking.end();
      await soon(50);
      return asked.length;
    })()"""
    assert evaluate(["state/resource.ts"], expression, browser=BROWSER) == 1


def test_what_goes_on_outlives_the_server_and_the_sign_in() -> None:
    expression = """(async () => {
      const wait = globalThis.setTimeout;
      globalThis.setTimeout = (then) => wait(then, 0);
      const said = [];
      const { signal } = new AbortController();
      const found = patiently(
        () => get("/lines"), signal, (error) => said.push(error?.message ?? null));
      for (const status of [503, 401]) {
        await soon();
        asked.at(-1).answer({ title: `${status}` }, status);
        await soon();
        await soon();
      }
      const before = asked.length;
      session.state.set({ kind: "in", who: {} });
      await soon();
      asked.at(-1).answer("lines");
      return [before, await found, said];
    })()"""
    modules = ["api/client.ts", "state/session.ts", "state/patience.ts"]
    before, found, said = evaluate(modules, expression, browser=BROWSER)
    assert (before, found) == (2, "lines")
    assert said == ["503", "401", None]
