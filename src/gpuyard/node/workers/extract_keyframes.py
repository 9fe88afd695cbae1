"""extract_keyframes: a video's key frames as JPEG files. Needs `gpuyard[video]`, and no
GPU.

Arguments: `path`; `most` (default 1000) is how many frames at most; `quality` (default
90) is that of the files.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def load(args: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Import the decoder."""
    import av
    from av.error import FFmpegError

    def run(
        args: Mapping[str, Any], folder: Path, progress: Callable[[float], None]
    ) -> dict[str, Any]:
        try:
            with av.open(str(args["path"])) as media:
                if not media.streams.video:
                    raise ValueError("it has no video stream")
                return _extract(
                    media,
                    folder,
                    progress,
                    int(args.get("most", 1000)),
                    int(args.get("quality", 90)),
                )
        except FFmpegError as error:
            raise ValueError(
                f"it is no video that can be read: {error.strerror}"
            ) from None

    return run


def _extract(
    media: Any, folder: Path, progress: Callable[[float], None], most: int, quality: int
) -> dict[str, Any]:
    stream = media.streams.video[0]
    stream.codec_context.skip_frame = "NONKEY"
    length = (
        float(stream.duration * stream.time_base)
        if stream.duration
        else (media.duration or 0) / 1e6
    )
    frames: list[dict[str, Any]] = []
    for frame in media.decode(stream):
        if len(frames) == most:
            break
        at = round(float(frame.time or 0.0), 3)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{len(frames) + 1:05}.jpg"
        frame.to_image().save(folder / name, quality=quality)
        frames.append({"at_s": at, "file": name})
        if length:
            progress(min(at / length, 1.0))
    if not frames:
        raise ValueError("it has no frame that can be decoded")
    return {"folder": folder.name, "frames": frames}
