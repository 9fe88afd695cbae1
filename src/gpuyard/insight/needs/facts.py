"""What a program says of its training: read from what the interpreter has noted."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.insight.needs.expressions import Expressions
from gpuyard.insight.needs.image_sizes import SIZE_NAMES, image_side, side_of
from gpuyard.insight.needs.made_models import Model, model_of, models_of, placed
from gpuyard.insight.needs.named_options import (
    config_given,
    model_named,
    options_given,
    read_deepspeed,
)
from gpuyard.insight.needs.repeats import settle_repeats
from gpuyard.insight.needs.tables import KnownData
from gpuyard.insight.needs.unseen_transformers import sized_transformer
from gpuyard.insight.needs.values import (
    LibraryCall,
    Place,
    Scope,
    Thing,
    Value,
    number,
    whole,
)
from gpuyard.insight.needs.weight_averages import settle_averages

_BATCH_NAMES = (
    "per_device_train_batch_size",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "micro_batch_size",
    "microbatch_size",
    "device_train_microbatch_size",
    "device_train_batch_size",
    "micro_batch",
    "device_batch_size",
    "batch_size_per_gpu",
    "batch_size",
    "batchsize",
    "batch",
    "bs",
)
_LENGTH_NAMES = (
    "max_seq_length",
    "max_seq_len",
    "max_sequence_length",
    "block_size",
    "sequence_length",
    "seq_length",
    "seq_len",
    "seqlen",
    "context_length",
    "context_size",
    "sequence_len",
    "ctx_len",
    "n_ctx",
    "max_length",
    "max_len",
    "maxlen",
    "cutoff_len",
    "model_max_length",
    "max_source_length",
    "bptt",
)
_EPOCH_NAMES = (
    "num_train_epochs",
    "num_epochs",
    "max_epochs",
    "n_epochs",
    "epochs",
    "train_epochs",
    "epoch",
)
_STEP_NAMES = (
    "max_steps",
    "max_train_steps",
    "max_iters",
    "num_steps",
    "num_iterations",
    "train_steps",
    "total_steps",
    "n_steps",
    "iterations",
    "max_iterations",
    "total_timesteps",
)
_ACCUMULATION = ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum")
_TRAINER_ARGUMENTS = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")
# Batches of another kind, and those of all GPUs and steps together.
_NO_BATCH = re.compile(r"eval|val|test|pred|infer|sample|total|global|effective")
_GRADIENTS = re.compile(
    r"\.backward\(|\b(?:jax|nnx|eqx|hk)\.(?:value_and_)?grad\b|GradientTape\("
)
# What enlarges images, or convolves them, without a layer of its own.
_RESIZES = re.compile(
    r"\b(?:interpolate|pixel_shuffle|PixelShuffle|upsample|upfirdn2d)\("
    r"|\bconv(?:_transpose)?[123]d\(|\bconv2d_(?:resample|gradfix)\b"
)
_TRAINS = re.compile(r"\boptim|Trainer\b|\.fit\(|_train\b|\btrain_")
_MOST_SETTINGS = 20_000


@dataclass(frozen=True, slots=True)
class Said:
    """A number of the program, where it stands, and whether gpuyard assumed it."""

    value: float
    place: Place | None = None
    name: str = ""
    assumed: bool = False


@dataclass(slots=True)
class Facts:
    """Everything that was read off a program."""

    calls: list[LibraryCall]
    models: list[Model] = field(default_factory=list[Model])
    settings: dict[str, Value] = field(default_factory=dict[str, Value])
    batch: Said | None = None
    length: Said | None = None
    epochs: Said | None = None
    steps: Said | None = None
    accumulation: int = 1
    pixels: int | None = None
    data: KnownData | None = None
    data_place: Place | None = None
    examples: Said | None = None
    complete: bool = True
    own_attention: bool = False
    resizes_itself: bool = False
    takes_gradients: bool = False
    trains: bool = False

    def named(self, *names: str) -> Iterator[Thing]:
        """The calls whose last names are these."""
        wanted = set(names)
        for call in self.calls:
            if call.thing.last_name in wanted:
                yield call.thing


def facts_of(host: Expressions, scope: Scope) -> Facts:
    """Read the facts off a program that was followed."""
    found = Facts(host.calls)
    found.complete = host.steps_left > 0 and not host.sources.is_cut
    texts = _texts_followed(host)
    found.own_attention = _has_own_attention(texts)
    found.resizes_itself = any(map(_RESIZES.search, texts))
    found.takes_gradients = any(map(_GRADIENTS.search, texts))
    found.trains = found.takes_gradients or any(map(_TRAINS.search, texts))
    found.settings = {**_settings(scope), **_short_names(scope)}
    files = (config_given(host), options_given(host))
    given = [each for each in files if each is not None]
    for each in given:
        host.record(each)
    read_deepspeed(host)
    for name, value in _given(host).items():
        found.settings.setdefault(name, value)
    settle_repeats(host.calls)
    settle_averages(host.calls)
    found.models = models_of(host.calls)
    is_known = any(not model.unknown for model in found.models)
    named = None if is_known else model_named(host, found.settings)
    if named is None and not is_known:
        named = sized_transformer(given)
    if named is not None:
        found.models = [model_of(named, set())]
    _read_data(found)
    _read_trainer(found)
    _read_loaders(found)
    _read_fit(found)
    found.batch = found.batch or _setting(found, _BATCH_NAMES) or _other_batch(found)
    found.length = _length(found)
    found.epochs = found.epochs or _setting(found, _EPOCH_NAMES)
    if found.steps is None:
        found.steps = _setting(found, _STEP_NAMES)
    _read_loops(found, host)
    found.pixels = _pixels(found)
    accumulation = _setting(found, _ACCUMULATION)
    if accumulation is not None and found.accumulation == 1:
        found.accumulation = max(int(accumulation.value), 1)
    return found


def _pixels(found: Facts) -> int | None:
    """The side of the images."""
    size = _setting(found, SIZE_NAMES)
    said = side_of(size.value) if size is not None else None
    of_data = found.data.pixels if found.data is not None else None
    made = image_side([call.thing for call in found.calls])
    return said or made or of_data or found.pixels


def _texts_followed(host: Expressions) -> list[str]:
    called = {call.thing.place.path for call in host.calls}
    paths = sorted({host.sources.entry, *called})
    return [host.sources.text(path) or "" for path in paths]


def _has_own_attention(texts: Sequence[str]) -> bool:
    """Whether the program multiplies queries and keys itself, and so keeps a number for
    each pair of tokens.
    """
    if any("scaled_dot_product" in text or "flash_attn" in text for text in texts):
        return False
    return any("softmax" in text and "transpose" in text for text in texts)


def _given(host: Expressions) -> Mapping[str, Value]:
    """The attributes of all namespaces and configurations."""
    found: dict[str, Value] = {}
    for call in host.calls:
        thing = call.thing
        if thing.last_name.endswith(("Config", "Arguments", "Namespace", "Args")):
            for name, value in thing.keywords.items():
                found.setdefault(name, value)
    return found


def _settings(scope: Scope) -> dict[str, Value]:
    """All plain values by their names, as they stand in the program's names and in its
    configurations.
    """
    found: dict[str, Value] = {}
    left = [_MOST_SETTINGS]
    for name, value in scope.names.items():
        _add_setting(found, name, value, 0, left)
    return found


def _short_names(scope: Scope) -> dict[str, Value]:
    """What `B` and `T` stand for, where a program has both: batch and tokens."""
    (batch, tokens) = (whole(scope.names.get(name)) for name in ("B", "T"))
    return (
        {"device_batch_size": batch, "max_seq_length": tokens}
        if batch and tokens
        else {}
    )


def _add_setting(
    found: dict[str, Value], name: str, value: Value, depth: int, left: list[int]
) -> None:
    left[0] -= 1
    if left[0] < 0:
        return  # tables that hold one another have values without end
    if isinstance(value, int | float | str):
        found.setdefault(name.lower(), value)
        return
    if depth > 3 or name.startswith("__"):
        return
    if isinstance(value, tuple) and name in ("image_size", "img_size") and value:
        found.setdefault(name, value[0])
    inner: Value = value
    if isinstance(value, Thing) and _is_config(value):
        inner = dict[Any, Any](value.attributes)
    if isinstance(inner, dict):
        for key, each in list(inner.items())[:500]:
            if isinstance(key, str):
                _add_setting(found, key, each, depth + 1, left)


def _is_config(thing: Thing) -> bool:
    return "is_model" not in thing.facts and "layer" not in thing.facts


def _setting(found: Facts, names: tuple[str, ...]) -> Said | None:
    for name in names:
        value = number(found.settings.get(name, found.settings.get(f"_{name}")))
        if value is not None and value > 0:
            return Said(value, None, name)
    return None


def _other_batch(found: Facts) -> Said | None:
    """A batch of any other name that is not for evaluation."""
    for name in found.settings:
        if name.endswith("batch_size") and not _NO_BATCH.search(name):
            said = _setting(found, (name,))
            if said is not None:
                return said
    return None


def _read_data(found: Facts) -> None:
    for call in found.calls:
        data = call.thing.facts.get("data")
        # What a package makes when it is imported is for all of its programs.
        is_shared = call.thing.place.path.endswith("__init__.py")
        is_left_out = is_shared or call.thing.facts.get("held_out")
        if isinstance(data, KnownData) and not is_left_out:
            found.data = data
            found.data_place = placed(call.thing)
            size = call.thing.facts.get("size")
            if isinstance(size, int):
                found.examples = Said(size, found.data_place, data.name)
            return
    for name in ("dataset", "dataset_name", "data", "data_name"):
        value = found.settings.get(name)
        if isinstance(value, str):
            from gpuyard.insight.needs.tables import known_data

            data = known_data(value)
            if data is not None:
                found.data = data
                if data.examples:
                    found.examples = Said(data.examples, None, data.name)
                return


def _read_trainer(found: Facts) -> None:
    """The arguments of Transformers' and Lightning's trainers."""
    for call in found.calls:
        thing = call.thing
        if thing.last_name.endswith(_TRAINER_ARGUMENTS) or _has_trainer_arguments(
            thing
        ):
            _read_arguments(found, thing)
            return
    for thing in found.named("Trainer"):
        if thing.name.startswith(("pytorch_lightning", "composer")):
            epochs = whole(thing.argument(-1, "max_epochs", "max_duration"))
            steps = whole(thing.argument(-1, "max_steps", default=None))
            found.epochs = Said(epochs, placed(thing)) if epochs else None
            found.steps = Said(steps, placed(thing)) if steps else None
            batches = whole(thing.argument(-1, "accumulate_grad_batches", default=1))
            found.accumulation = batches or 1


def _has_trainer_arguments(thing: Thing) -> bool:
    return "per_device_train_batch_size" in thing.keywords


def _read_arguments(found: Facts, thing: Thing) -> None:
    place = placed(thing)
    batch = thing.argument(-1, "per_device_train_batch_size", default=8)
    is_default = "per_device_train_batch_size" not in thing.keywords
    size = whole(batch)
    if size:
        found.batch = Said(size, place, "per_device_train_batch_size", is_default)
    epochs = number(thing.argument(-1, "num_train_epochs", default=3))
    found.epochs = Said(epochs, place, "num_train_epochs") if epochs else None
    steps = whole(thing.argument(-1, "max_steps", default=None))
    found.steps = Said(steps, place, "max_steps") if steps else None
    batches = whole(thing.argument(-1, "gradient_accumulation_steps", default=1))
    found.accumulation = batches or 1
    length = whole(thing.argument(-1, "max_seq_length", "max_length", default=None))
    if length:
        found.length = Said(length, place, "max_length")


def _read_loaders(found: Facts) -> None:
    """The batch of the first loader, which is most often that for training."""
    if found.batch is not None:
        return
    for call in found.calls:
        batch = whole(call.thing.facts.get("batch"))
        if (
            call.thing.facts.get("loader")
            and batch
            and not call.thing.facts.get("held_out")
        ):
            found.batch = Said(batch, placed(call.thing), "batch_size")
            return


def _read_fit(found: Facts) -> None:
    """Keras' `fit`, and `train` of Ultralytics."""
    for call in found.calls:
        thing = call.thing
        if thing.last_name not in ("fit", "train", "fit_one_cycle", "fine_tune"):
            continue
        epochs = whole(thing.argument(-1, "epochs", "n_epoch", default=None))
        if thing.last_name in ("fit_one_cycle", "fine_tune"):
            epochs = epochs or whole(thing.argument(0))
        if epochs and found.epochs is None:
            found.epochs = Said(epochs, placed(thing), "epochs")
        is_keras = thing.name.startswith("keras")
        batch = whole(thing.argument(-1, "batch_size", "batch", default=None))
        if batch and found.batch is None:
            found.batch = Said(batch, placed(thing), "batch_size")
        elif is_keras and found.batch is None and "batch_size" not in found.settings:
            found.batch = Said(32, placed(thing), "batch_size", assumed=True)
        size = whole(thing.argument(-1, "imgsz", default=None))
        if size:
            found.pixels = size


def _length(found: Facts) -> Said | None:
    if found.length is not None:
        return found.length
    for call in found.calls:
        for name in ("max_length", "max_seq_length"):
            value = whole(call.thing.keywords.get(name))
            is_generation = call.thing.last_name in ("generate", "GenerationConfig")
            if value and not is_generation:
                return Said(value, placed(call.thing), name)
    return _generated(found) or _setting(found, _LENGTH_NAMES)


def _generated(found: Facts) -> Said | None:
    """The tokens of a prompt and its answer, as trainers of rewards name them."""
    names = ("max_prompt_length", "max_completion_length")
    (prompt, answer) = (whole(found.settings.get(name)) for name in names)
    return Said(prompt + answer, None, names[1]) if prompt and answer else None


def _read_loops(found: Facts, host: Expressions) -> None:
    """Epochs and steps from the loops that train."""
    for loop in host.loops:
        is_epoch = "epoch" in loop.target.lower()
        if is_epoch and loop.count:
            if found.epochs is None:
                found.epochs = Said(loop.count, loop.place, loop.target)
        elif (
            loop.count
            and found.steps is None
            and found.epochs is None
            and loop.depth == 0
        ):
            found.steps = Said(loop.count, loop.place, loop.target)
