"""A blob as an answer, whole or the part that a `Range` header asks for, as
`FileResponse` does it for files.
"""

import re
from mimetypes import guess_type
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background, read_chunks

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")


class NotThereError(Exception):
    """The part that is asked for lies outside."""


def wanted_part(header: str, size: int) -> tuple[int, int] | None:
    """First and end (which is not in it) of what a `Range` header wants of `size`
    bytes; NotThereError.

    None for all of it: a header of another form, or for several parts, may be ignored.
    """
    found = _RANGE.fullmatch(header.strip().lower())
    if found is None:
        return None
    first, last, newest = found.groups()
    start = max(size - int(newest), 0) if newest else int(first)
    end = min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return None
    if start >= size:
        raise NotThereError
    return start, end


async def blob_response(
    blobs: Blobs, sha256: str, size: int, name: str, request: Request
) -> Response:
    """The blob of `size` bytes, streamed from where it is, as a file called `name`;
    FileNotFoundError when it is not there, BucketError when that cannot be asked.
    """
    etag = f'"{sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Length": str(size),
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(name)}",
    }
    if quote(name) == name:
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    asked = request.headers.get("range")
    part = None
    if asked and request.headers.get("if-range", etag) == etag:
        try:
            part = wanted_part(asked, size)
        except NotThereError:
            return Response(
                status_code=416, headers={"Content-Range": f"bytes */{size}"}
            )
    if part:
        headers |= {
            "Content-Range": f"bytes {part[0]}-{part[1] - 1}/{size}",
            "Content-Length": str(part[1] - part[0]),
        }
    # Opened before anything is said, so that what is wrong with it can be said.
    file = await in_background(blobs.open, sha256, part)
    media_type = guess_type(name)[0] or "application/octet-stream"
    return StreamingResponse(
        read_chunks(file), 206 if part else 200, headers, media_type
    )
