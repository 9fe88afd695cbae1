"""Small real videos: moving bars with a tone, made with the codecs that PyAV brings."""

from collections.abc import Sequence
from pathlib import Path

import av
from PIL import Image

RATE = 10
SOUND = 16_000
COLOURS = ((200, 30, 30), (30, 200, 30), (30, 30, 200))


def make_video(path: Path, seconds: float, *, sound: bool = True) -> Path:
    """A video of `seconds`, with a key frame at each second."""
    with av.open(str(path), "w") as media:
        pictures = media.add_stream("mpeg4", rate=RATE)
        pictures.width = 64
        pictures.height = 48
        pictures.pix_fmt = "yuv420p"
        pictures.codec_context.gop_size = RATE
        tone = media.add_stream("aac", rate=SOUND, layout="mono") if sound else None
        for number in range(int(seconds * RATE)):
            image = Image.new("RGB", (64, 48), COLOURS[number // RATE % len(COLOURS)])
            media.mux(pictures.encode(av.VideoFrame.from_image(image)))
        media.mux(pictures.encode(None))
        if tone is not None:
            for part in _silence(seconds):
                media.mux(tone.encode(part))
            media.mux(tone.encode(None))
    return path


def _silence(seconds: float) -> Sequence[av.AudioFrame]:
    frames = []
    for number in range(int(seconds * SOUND / 1024)):
        frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
        frame.planes[0].update(bytes(4 * 1024))
        frame.rate = SOUND
        frame.pts = number * 1024
        frames.append(frame)
    return frames
