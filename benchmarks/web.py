"""The page in Chromium, beside a bare static page in the same browser: what it loads,
how soon it shows live data, and how it keeps up with long lists, logs and curves.
"""

import asyncio
import http.server
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from benchmarks.bench import Web, block, scaled, serving, spec_body
from benchmarks.figures import Figure, alternate
from gpuyard.client.connection import Address
from tests.support.instance import TestInstance

GROUP = "web"
_KB = 1000
_PATIENCE_MS = 120_000
_VIEWERS = 50
_BARE = b"<!doctype html><title>bare</title><style>div{height:40px}</style>"
# Notes when the page shows the first thing that matches, in ms since it was asked for.
_NOTE_FIRST = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(%s)) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.firstShown = performance.now(); });
}).observe(document, { childList: true, subtree: true });
"""
# The longest time between two frames while something scrolls for so many ms.
_SCROLL = """
([selector, lastsMs]) => new Promise((resolve) => {
  const box = selector ? document.querySelector(selector) : document.scrollingElement;
  const began = performance.now();
  let before = began;
  let longest = 0;
  function frame(now) {
    longest = Math.max(longest, now - before);
    before = now;
    box.scrollTop += 400;
    if (now - began < lastsMs) requestAnimationFrame(frame);
    else resolve(longest);
  }
  requestAnimationFrame(frame);
})
"""
# A click, and the picture after the one in which what it changes is drawn.
_CLICK = """
(box) => new Promise((resolve) => {
  box.click();
  requestAnimationFrame(() => requestAnimationFrame(resolve));
})
"""
_FIRST_PAINT = "() => performance.getEntriesByType('paint')[0]?.startTime"
_ALL_ARE_CALLED = """
(wanted) => {
  const links = [...document.querySelectorAll("[role=listitem] a")];
  return links.length > 0 && links.every((link) => link.textContent === wanted);
}
"""
_LINE_IS_SHOWN = """
(wanted) => [...document.querySelectorAll(".line")].some((line) => line.textContent.includes(wanted))
"""
_LINE_IS_FOUND = """
(wanted) => [...document.querySelectorAll(".line.found")].some((line) => line.textContent.includes(wanted))
"""
_LOG = """
import sys
for number in range(int(sys.argv[1])):
    print("2026-11-28 20:00:00 INFO shard", number, "has been read")
"""
_CURVE = """
import json, sys
for step in range(int(sys.argv[1])):
    print("GPUYARD_METRIC " + json.dumps({"step": step, "loss": 1 / (step + 1)}))
"""


def measure(scale: float) -> Iterator[Figure]:
    """All of it on one server with simulated GPUs and a long queue."""
    rounds = scaled(5, scale)
    with serving() as (instance, web):
        with _bare_page() as bare, _chromium() as browser:
            yield from _sizes(browser, instance)
            yield _first_data(browser, instance, bare, rounds)
            lines = scaled(1_000_000, scale, 1000)
            yield from _long_log(browser, instance, lines, rounds)
            points = scaled(100_000, scale, 100)
            yield _redraw(browser, instance, points, rounds)
            block(instance, web)
            count = scaled(100_000, scale, 500)
            bodies = [spec_body(number, distinct=False) for number in range(count)]
            web.send("POST", "/api/v1/jobs", json.dumps(bodies).encode())
            yield from _long_list(browser, instance, bare, count, rounds)
        web.cancel_queued()
        yield _viewers(instance, web, rounds, scale)
        with _chromium() as browser:
            yield _memory(browser, instance, web, max(300 * scale, 3))


# --- what is measured ---


def _sizes(browser: Browser, instance: TestInstance) -> Iterator[Figure]:
    page = _signed_in(browser, instance)
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    kinds: dict[str, str] = {}
    sizes: dict[str, float] = {}
    session.on(
        "Network.responseReceived",
        lambda seen: kinds.update({seen["requestId"]: seen["type"]}),
    )
    session.on(
        "Network.loadingFinished",
        lambda seen: sizes.update({seen["requestId"]: seen["encodedDataLength"]}),
    )
    page.reload()
    page.locator("article.gpu, .count").first.wait_for()
    page.wait_for_timeout(1000)
    total = sum(sizes.values()) / _KB
    code = sum(
        size
        for each, size in sizes.items()
        if kinds.get(each) in ("Script", "Stylesheet")
    )
    page.context.close()
    yield Figure(GROUP, "first transfer in all", [total], "kB", 120)
    yield Figure(GROUP, "code of the first screen", [code / _KB], "kB", 60)


def _first_data(
    browser: Browser, instance: TestInstance, bare: str, rounds: int
) -> Figure:
    """The target is 1.5 times the bare page's first paint and 300 ms."""
    page = _signed_in(browser, instance)
    page.add_init_script(_NOTE_FIRST % json.dumps(".count"))
    plain = browser.new_page()

    def ours() -> float:
        page.goto(instance.address().url)
        return _awaited(page, "() => window.firstShown")

    def floor() -> float:
        plain.goto(bare)
        return _awaited(plain, _FIRST_PAINT)

    ours()
    floor()
    values, floors = alternate(rounds, ours, floor)
    page.context.close()
    plain.close()
    late = [value - 1.5 * bare for value, bare in zip(values, floors, strict=True)]
    return Figure(
        GROUP,
        "first live data, beyond 1.5 × the bare page's first paint",
        late,
        "ms",
        300,
        floors,
        "the bare page's first paint",
        absolute=True,
    )


def _long_list(
    browser: Browser, instance: TestInstance, bare: str, count: int, rounds: int
) -> Iterator[Figure]:
    page = _signed_in(browser, instance, "/jobs")
    page.get_by_role("listitem").nth(20).wait_for()
    plain = browser.new_page()
    plain.goto(bare)
    plain.evaluate(
        "document.body.append(...Array.from({length: 2000}, () => document.createElement('div')))"
    )

    def scroll(where: Page, selector: str) -> float:
        where.evaluate("scrollTo(0, 0)")
        return where.evaluate(_SCROLL, [selector, 2000])

    values, floors = alternate(
        rounds, lambda: scroll(page, ".list .body"), lambda: scroll(plain, "")
    )
    yield Figure(
        GROUP,
        f"longest frame while a list of {count:,} jobs scrolls",
        values,
        "ms",
        50,
        floors,
        "a bare list",
        absolute=True,
    )
    numbers = iter(range(rounds))
    name = page.get_by_role("searchbox", name="name")

    def filtered() -> float:
        wanted = f"train-{10 + next(numbers)}"
        began = time.perf_counter()
        name.fill(wanted)
        _awaited(page, _ALL_ARE_CALLED, wanted)
        return 1000 * (time.perf_counter() - began)

    yield Figure(
        GROUP,
        f"a filter over {count:,} jobs is answered",
        [filtered() for _ in range(rounds)],
        "ms",
        150,
    )
    page.context.close()
    plain.close()


def _long_log(
    browser: Browser, instance: TestInstance, count: int, rounds: int
) -> Iterator[Figure]:
    job = _completed(instance, _LOG, count)
    page = _signed_in(browser, instance, f"/jobs/{job}")
    page.get_by_role("tab", name="log").wait_for()

    def opened() -> float:
        page.get_by_role("tab", name="timeline").click()
        began = time.perf_counter()
        page.get_by_role("tab", name="log").click()
        _awaited(page, _LINE_IS_SHOWN, f"shard {count - 1} ")
        return 1000 * (time.perf_counter() - began)

    numbers = iter(range(rounds))
    field = page.get_by_role("searchbox", name="Search the log")

    def searched() -> float:
        wanted = f"shard {count // 2 + next(numbers)} "
        began = time.perf_counter()
        field.fill(wanted)
        _awaited(page, _LINE_IS_FOUND, wanted)
        return 1000 * (time.perf_counter() - began)

    lines = f"a log of {count:,} lines"
    yield Figure(GROUP, f"{lines} opens", [opened() for _ in range(rounds)], "ms", 500)
    found = [searched() for _ in range(rounds)]
    yield Figure(GROUP, f"a search in {lines}", found, "ms", 500)
    page.context.close()


def _redraw(
    browser: Browser, instance: TestInstance, count: int, rounds: int
) -> Figure:
    """How long the page works for a picture of all curves. The time between two
    pictures would say nothing, for a browser draws none sooner than its screen shows it.
    """
    job = _completed(instance, _CURVE, count)
    page = _signed_in(browser, instance, f"/jobs/{job}")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    box = page.get_by_label("logarithmic")
    box.wait_for()
    page.locator(".chart canvas").first.wait_for()
    element = box.element_handle()

    def redrawn() -> float:
        before = _busy_ms(session)
        page.evaluate(_CLICK, element)
        return _busy_ms(session) - before

    redrawn()
    values = [redrawn() for _ in range(rounds)]
    page.context.close()
    return Figure(
        GROUP, f"curves of {count:,} points are drawn again", values, "ms", 16
    )


def _viewers(instance: TestInstance, web: Web, rounds: int, scale: float) -> Figure:
    """Processor time of the server while jobs come and go. Each viewer has asked what
    the overview shows, and now reads the stream of events, which keeps that up to date.
    """
    seconds = max(10 * scale, 1)
    pid = instance.pid("server")
    assert pid

    def cost(count: int) -> float:
        spent = asyncio.run(_view(instance.address(), count, seconds, web, pid))
        return spent * 1000 / seconds

    values, floors = alternate(min(rounds, 3), lambda: cost(_VIEWERS), lambda: cost(1))
    return Figure(
        GROUP,
        f"the server's processor time with {_VIEWERS} viewers, a second",
        values,
        "ms",
        2,
        floors,
        "one viewer",
    )


def _memory(
    browser: Browser, instance: TestInstance, web: Web, seconds: float
) -> Figure:
    """How much the page's heap grows while 12 jobs a second come and go."""
    page = _signed_in(browser, instance)
    session = page.context.new_cdp_session(page)
    _come_and_go(web, min(seconds / 5, 10))
    before = _heap_mb(session)
    _come_and_go(web, seconds)
    after = _heap_mb(session)
    page.context.close()
    return Figure(
        GROUP,
        f"the page's memory after {seconds:g} s with 12 jobs a second",
        [after],
        "MB",
        1.1,
        [before],
        "before",
    )


# --- the browser and its pages ---


@contextmanager
def _chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def _bare_page() -> Iterator[str]:
    class Bare(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(_BARE + b"<p>bare</p>")

        def log_message(self, *_arguments: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bare)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def _signed_in(browser: Browser, instance: TestInstance, path: str = "/") -> Page:
    address = instance.address()
    context = browser.new_context()
    context.set_default_timeout(_PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{address.url}{path}")
    page.get_by_label("Token").fill(address.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation").wait_for()
    return page


def _completed(instance: TestInstance, program: str, count: int) -> str:
    """The id of a job that has run this program, which prints so many lines."""
    (instance.work / "program.py").write_text(program)
    words = ["--detach", "--live", "--cpus", "0.1", "--", "python3", "program.py"]
    words.append(str(count))
    job = instance.ok("run", *words).strip()
    instance.wait(job, timeout=600)
    return job


def _awaited(page: Page, look: str, argument: object = None) -> Any:
    """What the function `look` of JavaScript finds at last; it looks in each frame."""
    poll = f"""
    (argument) => new Promise((resolve) => {{
      const look = {look};
      const frame = () => {{
        const found = look(argument);
        if (found) resolve(found);
        else requestAnimationFrame(frame);
      }};
      frame();
    }})
    """
    return page.evaluate(poll, argument)


def _busy_ms(session: CDPSession) -> float:
    """How long the page has worked since it was opened: programs, layout and drawing."""
    answer = session.send("Performance.getMetrics")
    metrics = {each["name"]: each["value"] for each in answer["metrics"]}
    return metrics["TaskDuration"] * 1000


def _heap_mb(session: CDPSession) -> float:
    session.send("HeapProfiler.enable")
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"] / 1e6


# --- the server's work ---


def _cpu_s(pid: int) -> float:
    spent = psutil.Process(pid).cpu_times()
    return spent.user + spent.system


def _come_and_go(web: Web, seconds: float) -> None:
    """Submit and cancel 12 jobs a second."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        web.send("POST", "/api/v1/jobs", _twelve())
        web.cancel_queued()
        time.sleep(max(0.0, min(1.0, ends_at - time.monotonic())))


def _twelve() -> bytes:
    bodies = [spec_body(number, distinct=False) for number in range(12)]
    return json.dumps(bodies).encode()


_ASKED = (
    *("/api/v1/gpus", "/api/v1/server", "/api/v1/jobs?limit=8&folded=true"),
    *("/api/v1/batches", "/api/v1/queues"),
)


async def _view(
    address: Address, count: int, seconds: float, web: Web, pid: int
) -> float:
    """The processor time in seconds that the server spends with so many viewers."""
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {address.token}"}
    async with httpx.AsyncClient(
        base_url=address.url, headers=headers, limits=limits, timeout=60
    ) as client:
        viewers = [_Viewer(client) for _ in range(count)]
        streams = [asyncio.create_task(viewer.listen()) for viewer in viewers]
        for viewer in viewers:
            await viewer.has_begun.wait()
        before = _cpu_s(pid)
        await asyncio.to_thread(_come_and_go, web, seconds)
        spent = _cpu_s(pid) - before
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
    return spent


class _Viewer:
    """An open page: `has_begun` when it shows something."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.has_begun = asyncio.Event()
        self._client = client

    async def listen(self) -> None:
        for path in _ASKED:
            await self._client.get(path)
        asked = {"watch": list(_ASKED)}
        # Without it the server gives a page of events, which would end at once.
        headers = {"Accept": "text/event-stream"}
        async with self._client.stream(
            "GET", "/api/v1/events", params=asked, headers=headers
        ) as events:
            self.has_begun.set()
            async for _ in events.aiter_raw():
                pass
