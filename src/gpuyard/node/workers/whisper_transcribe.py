"""whisper_transcribe: what is said in an audio or video file. Needs `gpuyard[whisper]`
(transformers' Whisper).

Arguments: `path`; `model` (default openai/whisper-small.en) is a name or a folder;
`language`, `task` as Whisper's own. The sound is read in parts of 30 seconds, the
length that Whisper hears at once.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

_RATE = 16_000
_PART_S = 30
_DEFAULT = "openai/whisper-small.en"


def load(args: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Load the model, onto the GPU where there is one."""
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    source = str(args.get("model", _DEFAULT))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float16 if device == "cuda" else torch.float32
    processor: Any = WhisperProcessor.from_pretrained(source)
    model: Any = (
        WhisperForConditionalGeneration.from_pretrained(source, dtype=dtype)
        .to(device)
        .eval()
    )

    def hear(part: Any, options: dict[str, Any]) -> str:
        heard = processor(
            part, sampling_rate=_RATE, return_tensors="pt", return_attention_mask=True
        )
        with torch.inference_mode():
            said = model.generate(
                heard.input_features.to(device, dtype),
                attention_mask=heard.attention_mask.to(device),
                **options,
            )
        return processor.batch_decode(said, skip_special_tokens=True)[0].strip()

    def run(
        args: Mapping[str, Any], folder: Path, progress: Callable[[float], None]
    ) -> dict[str, Any]:
        del folder  # the words are the output
        options = {
            name: args[name]
            for name in ("language", "task", "max_new_tokens")
            if name in args
        }
        segments: list[dict[str, Any]] = []
        for start, part, length in _parts(str(args["path"])):
            segments.append(
                {
                    "start": start,
                    "end": start + len(part) / _RATE,
                    "text": hear(part, options),
                }
            )
            if length:
                progress(min(segments[-1]["end"] / length, 1.0))
        return {
            "text": " ".join(s["text"] for s in segments if s["text"]),
            "segments": segments,
        }

    return run


def _parts(path: str) -> Iterator[tuple[float, Any, float]]:
    """The sound in parts: where each begins (seconds), its samples, and how long the
    whole is (0: unknown).
    """
    import av
    import numpy as np
    from av.error import FFmpegError

    try:
        with av.open(path) as media:
            if not media.streams.audio:
                raise ValueError("it has no sound")
            length = (media.duration or 0) / 1e6
            start = 0.0
            held = []
            count = 0
            for samples in _sound(
                media, av.AudioResampler(format="flt", layout="mono", rate=_RATE)
            ):
                held.append(samples)
                count += len(samples)
                if count >= _RATE * _PART_S:
                    whole = np.concatenate(held)
                    yield start, whole[: _RATE * _PART_S], length
                    held = [whole[_RATE * _PART_S :]]
                    start = start + _PART_S
                    count = len(held[0])
            if count:
                yield start, np.concatenate(held), length
    except FFmpegError as error:
        raise ValueError(f"it is no media that can be read: {error.strerror}") from None


def _sound(media: Any, resampler: Any) -> Iterator[Any]:
    """Samples as they come; at the end the resampler gives the last of them."""
    for frame in chain(media.decode(media.streams.audio[0]), [None]):
        for made in resampler.resample(frame):
            yield made.to_ndarray()[0]
