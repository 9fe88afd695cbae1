"""The page for people: the files that `web/` was built into, for everybody.

They hold nothing of the instance. What the page shows it asks of the API, as whoever
has signed in. One file, `index.html`, stands for all screens.
"""

import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse

FILES = Path(__file__).parent / "web_files"
_ASSETS = "assets"
# The first words of the page's own paths.
SCREENS = frozenset(
    {
        "audit",
        "batches",
        "clouds",
        "costs",
        "data",
        "jobs",
        "machines",
        "models",
        "offers",
        "people",
        "schedules",
        "studies",
        "submit",
        "sweeps",
        "ui",
        "verification",
    }
)
# The first words of the paths that programs ask for, and of what the page loads.
_NO_SCREENS = frozenset(
    {
        _ASSETS,
        "api",
        "auth",
        "docs",
        "healthz",
        "metrics",
        "openapi.json",
        "shared",
        "v1",
    }
)
_NOT_BUILT = (
    "The page was not built with this checkout.\n"
    "Build it with `make page`; everything else works without it, see /docs.\n"
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_PAGE_HEADERS = {
    "Content-Security-Policy": _POLICY,
    # With no-referrer, browsers would not say of which page a request is.
    "Referrer-Policy": "same-origin",
}
# The name of such a file changes with its content.
_ASSET_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}
_SMALLEST_COMPRESSED = 1024

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _PageFile:
    """A file, and the same compressed if that is worth it."""

    content: bytes
    media_type: str
    compressed: bytes | None


def is_of_page(path: str) -> bool:
    """Whether this path is one of the page's."""
    first = path.split("/")[1]
    return path == "/" or first == _ASSETS or first in SCREENS


@router.get("/assets/{name:path}")
async def asset(request: Request, name: str) -> Response:
    """A file of the page."""
    found = _files().get(f"{_ASSETS}/{name}")
    if found is None:
        raise HTTPException(404)
    return _answer(request, found, _ASSET_HEADERS)


async def page(request: Request) -> Response:
    """The page. Which screen it shows, it reads off its address."""
    index = _files().get("index.html")
    if index is None:
        return PlainTextResponse(_NOT_BUILT, 404)
    return _answer(request, index, _PAGE_HEADERS)


def nothing_here(request: Request) -> Response | None:
    """The page, which says that nothing is at this address: for a person who has
    mistyped it in a browser. None for programs.
    """
    index = _files().get("index.html")
    first = request.scope["path"].split("/")[1]
    is_of_browser = (
        request.method == "GET"
        and "text/html" in request.headers.get("Accept", "")
        and "Authorization" not in request.headers
    )
    if index is None or first in _NO_SCREENS or not is_of_browser:
        return None
    answer = _answer(request, index, _PAGE_HEADERS)
    answer.status_code = 404
    return answer


router.add_api_route("/", page)
for _screen in sorted(SCREENS):
    router.add_api_route(f"/{_screen}", page)
    router.add_api_route(f"/{_screen}/{{rest:path}}", page)


def _answer(request: Request, file: _PageFile, headers: dict[str, str]) -> Response:
    accepts_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
    if file.compressed is None or not accepts_gzip:
        return Response(file.content, headers=headers, media_type=file.media_type)
    return Response(
        file.compressed,
        headers={**headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"},
        media_type=file.media_type,
    )


@cache
def _files() -> dict[str, _PageFile]:
    """Every file of the page, by its path. They are few and small."""
    return {
        str(path.relative_to(FILES)): _load(path)
        for path in FILES.rglob("*")
        if path.is_file()
    }


def _load(path: Path) -> _PageFile:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_worth_it = len(content) >= _SMALLEST_COMPRESSED
    compressed = gzip.compress(content, mtime=0) if is_worth_it else None
    return _PageFile(content, media_type, compressed)
