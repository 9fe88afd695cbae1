"""Recognises data sets and loaders, and how many examples they give."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from gpuyard.insight.needs.tables import known_data
from gpuyard.insight.needs.values import UNKNOWN, Tensor, Thing, Value, whole

_KEEPING = frozenset(
    {"map", "filter", "shuffle", "with_transform", "with_format", "set_format"}
    | {"remove_columns", "rename_column", "cast_column", "cache", "prefetch", "repeat"}
    | {
        "batch",
        "flatten_indices",
        "to_tf_dataset",
        "set_transform",
        "class_encode_column",
    }
    | {"sort", "unbatch", "padded_batch", "as_numpy_iterator", "skip"}
)
_LOADERS = ("DataLoader", "StatefulDataLoader", "DistributedSampler", "DataListLoader")


def recognise_data(thing: Thing) -> bool:
    """Note in an object's facts what data it is; False if it is none."""
    last = thing.last_name
    name = thing.name
    first = thing.argument(0, "path", "name", "dataset", default=None)
    if last in _LOADERS:
        _set_loader(thing)
        return True
    if name in ("datasets.load_dataset", "tensorflow_datasets.load", "tfds.load"):
        _set_named(thing, first)
        return True
    if ".datasets." in name and not name.startswith("transformers"):
        dataset = name.split(".")[-2] if last == "load_data" else last
        _set_named(thing, dataset)
        is_training = thing.argument(1, "train", default=True)
        split = thing.argument(-1, "split", default="train")
        is_held_out = is_training is False or split in ("test", "val", "valid")
        thing.facts["held_out"] = is_held_out
        if is_held_out:
            thing.facts["size"] = None
        return True
    if last in ("Subset", "ConcatDataset", "TensorDataset", "IterableDatasetShard"):
        if isinstance(first, Thing):
            thing.facts.update(first.facts)
        elif isinstance(first, Tensor) and first.shape:
            thing.facts["size"] = first.shape[0]
        return True
    return False


def _set_named(thing: Thing, name: Value) -> None:
    second = thing.argument(1, "name", default=None)
    names = [name, second] if isinstance(second, str) else [name]
    for each in reversed(names):
        if isinstance(each, str) and (found := known_data(each)):
            thing.facts["data"] = found
            thing.facts["size"] = _part(found.examples, thing.keywords.get("split"))
            return
    thing.facts["unknown_data"] = name


def _part(examples: int | None, split: Value) -> int | None:
    """The examples of a split such as `train[:5000]` or `train[:10%]`."""
    if not isinstance(split, str) or "[" not in split or examples is None:
        return examples
    bound = split.partition("[")[2].rstrip("]").rpartition(":")[2]
    if bound.endswith("%") and (share := whole(bound.rstrip("%"))) is not None:
        return examples * min(share, 100) // 100
    found = whole(bound)
    return min(found, examples) if found else examples


def _set_loader(thing: Thing) -> None:
    data = thing.argument(0, "dataset", default=None)
    if isinstance(data, Thing):
        kept = ("data", "size", "split", "held_out", "unknown_data")
        thing.facts.update({k: v for k, v in data.facts.items() if k in kept})
        if data.user_class is not None:
            thing.facts["unknown_data"] = data.name
    thing.facts["batch"] = thing.argument(1, "batch_size", default=1)
    thing.facts["loader"] = thing.last_name != "DistributedSampler"


def data_method(receiver: Thing, thing: Thing) -> Value:
    """The result of a method of a data set; `UNKNOWN` if it is another thing."""
    name = thing.name
    made = Thing(receiver.name, receiver.place, facts=dict(receiver.facts))
    if name in _KEEPING:
        return made
    if name in ("select", "take") and thing.arguments:
        rows = thing.arguments[0]
        made.facts["size"] = (
            len(rows) if isinstance(rows, range | list) else whole(rows)
        )
        return made
    if name == "train_test_split":
        held_out = thing.argument(0, "test_size", default=0.25)
        size = receiver.facts.get("size")
        share = held_out if isinstance(held_out, float) and held_out < 1 else None
        if isinstance(size, int) and share is not None:
            made.facts["size"] = int(size * (1 - share))
        test = Thing(receiver.name, receiver.place, facts={"held_out": True})
        return {"train": made, "test": test}
    return UNKNOWN
