"""whisper_transcribe: what is said in an audio or video file. Needs `gpuyard[whisper]` (transformers' Whisper).

Arguments: `path`; `model` (default openai/whisper-small.en) is a name or a folder; `language`, `task` as Whisper's own.
The sound is read in parts of 30 seconds, the length that Whisper hears at once.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_RATE, _PART_S = 16_000, 30
_DEFAULT = "openai/whisper-small.en"


def load(args: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Load the model, onto the GPU where there is one."""
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    source = str(args.get("model", _DEFAULT))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float16 if device == "cuda" else torch.float32
    processor: Any = WhisperProcessor.from_pretrained(source)
    model: Any = WhisperForConditionalGeneration.from_pretrained(source, dtype=dtype).to(device).eval()

    def hear(part: Any, options: dict[str, Any]) -> str:
        heard = processor(part, sampling_rate=_RATE, return_tensors="pt", return_attention_mask=True)
        with torch.inference_mode():
            said = model.generate(
                heard.input_features.to(device, dtype), attention_mask=heard.attention_mask.to(device), **options
            )
        return processor.batch_decode(said, skip_special_tokens=True)[0].strip()

    def run(args: Mapping[str, Any], folder: Path, progress: Callable[[float], None]) -> dict[str, Any]:
        del folder  # the words are the output
        options = {name: args[name] for name in ("language", "task", "max_new_tokens") if name in args}
        segments: list[dict[str, Any]] = []
        for start, part, length in _parts(str(args["path"])):
            segments.append({"start": start, "end": start + len(part) / _RATE, "text": hear(part, options)})
            if length:
                progress(min(segments[-1]["end"] / length, 1.0))
        return {"text": " ".join(s["text"] for s in segments if s["text"]), "segments": segments}

    return run


def _parts(path: str) -> Iterator[tuple[float, Any, float]]:
    """The sound in parts: where each begins (seconds), its samples, and how long the whole is (0: unknown)."""
    import av
    import numpy as np
    from av.error import FFmpegError

    try:
        with av.open(path) as media:
            if not media.streams.audio:
                raise ValueError("it has no sound")
            length = (media.duration or 0) / 1e6
            resampler = av.AudioResampler(format="flt", layout="mono", rate=_RATE)
            held, start, most = np.zeros(0, np.float32), 0.0, _RATE * _PART_S
            for frame in [*_frames(media), None]:  # None lets the resampler give the last of it
                samples = [made.to_ndarray()[0] for made in resampler.resample(frame)]
                held = np.concatenate([held, *samples])
                while len(held) >= most:
                    yield start, held[:most], length
                    held, start = held[most:], start + _PART_S
            if len(held):
                yield start, held, length
    except FFmpegError as error:
        raise ValueError(f"it is no media that can be read: {error.strerror}") from None


def _frames(media: Any) -> Iterator[Any]:
    yield from media.decode(media.streams.audio[0])
