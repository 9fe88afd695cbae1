"""Recognises the models of libraries: published ones by their names, others by their
configuration.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Callable
from typing import Any

from gpuyard.insight.needs.architectures import architecture_of, sizes_of
from gpuyard.insight.needs.diffusion_models import clip_part, diffusion
from gpuyard.insight.needs.published_models import (
    attributes_of,
    hidden_of,
    set_published,
)
from gpuyard.insight.needs.stable_baselines import stable_baselines_model
from gpuyard.insight.needs.tables import KnownModel, known_model, known_vision
from gpuyard.insight.needs.unseen_transformers import unseen_transformer
from gpuyard.insight.needs.values import Parameter, Thing, Value, whole
from gpuyard.insight.needs.vision_models import (
    keras_application,
    loaded_model,
    set_counted,
    set_vision,
    vision_model,
)

_NO_MODELS = re.compile(
    r"Config$|Tokenizer|Processor|FeatureExtractor|Scheduler$|Dataset|Callback"
    r"|Collator"
)
_TRANSFORMERS = ("transformers", "trl", "unsloth", "peft", "optimum", "ctransformers")
_SENTENCES = frozenset({"SentenceTransformer", "CrossEncoder"})


def recognise(thing: Thing) -> bool:
    """Give an object the weights of the model that it is; False if it is none that is
    known. The object's facts say what it is.
    """
    name = thing.name
    if _NO_MODELS.search(name.removesuffix(".from_pretrained").rpartition(".")[2]):
        return False
    found = any(recogniser(thing) for recogniser in _RECOGNISERS)
    if found:
        thing.facts["is_model"] = True
    return found


def recognise_config(thing: Thing) -> bool:
    """Give an object the attributes of the configuration of a model that it is."""
    name = thing.name.removesuffix(".from_pretrained")
    last = name.rpartition(".")[2]
    is_tokenizer = "Tokenizer" in last or "Processor" in last
    if not last.endswith("Config") and not is_tokenizer:
        return False
    thing.attributes.update(thing.keywords)
    first = thing.argument(0, "pretrained_model_name_or_path")
    published = known_model(first) if isinstance(first, str) else None
    if published is not None:
        thing.facts["published"] = published
        sizes = attributes_of(published)
        thing.attributes.update(
            {k: v for k, v in sizes.items() if k not in thing.keywords}
        )
        if is_tokenizer:
            thing.facts["size"] = published.vocabulary or None
    architecture = architecture_of(last)
    if architecture and thing.name == name:
        sizes_found = sizes_of(architecture, thing.keywords)
        if sizes_found:
            thing.attributes.setdefault("hidden_size", sizes_found.width)
            thing.attributes.setdefault("vocab_size", sizes_found.vocabulary)
    return True


def _pretrained(thing: Thing) -> bool:
    """`from_pretrained(NAME)` of Transformers and its kin."""
    if not thing.name.endswith((".from_pretrained", ".from_hub", ".load_from_hub")):
        return False
    if thing.name.startswith("diffusers"):
        return False
    name = thing.argument(
        0, "pretrained_model_name_or_path", "model_name", "model_name_or_path"
    )
    if not isinstance(name, str):
        config = thing.argument(-1, "config", default=None)
        if isinstance(config, Thing) and "published" in config.facts:
            set_published(thing, config.facts["published"])
            return True
        thing.facts["unknown_model"] = name
        return True
    published = known_model(name)
    if published is None and (vision := known_vision(name)):
        set_vision(thing, vision.name, None)
        return True
    if published is None:
        thing.facts["unknown_model"] = name
        return True
    set_published(thing, published)
    return True


def _configured(thing: Thing) -> bool:
    """A class of Transformers that is given a configuration."""
    if not thing.name.startswith(_TRANSFORMERS):
        return False
    from_config = thing.name.endswith((".from_config", "._from_config"))
    config = thing.argument(0, "config", default=None)
    if not isinstance(config, Thing) or "Config" not in config.name:
        return False
    class_name = thing.name.split(".")[-2 if from_config else -1]
    if not class_name[:1].isupper() or class_name.endswith("Trainer"):
        return False
    config_name = config.name.removesuffix(".from_pretrained").rpartition(".")[2]
    published = config.facts.get("published")
    architecture = architecture_of(config_name) or architecture_of(class_name)
    if published is not None:
        set_published(thing, published)
        _resize_vocabulary(thing, published, config.keywords.get("vocab_size"))
        return True
    if architecture is None:
        thing.facts["unknown_model"] = config_name
        return True
    sizes = sizes_of(architecture, {**config.keywords, **_own(config)})
    if sizes is None:
        thing.facts["unknown_model"] = config_name
        return True
    thing.attributes["_backbone"] = Parameter(architecture.count(sizes))
    thing.attributes["config"] = config
    thing.facts["kind"] = architecture.kind
    thing.facts["sizes"] = sizes
    thing.facts["model_name"] = class_name
    return True


def _own(config: Thing) -> dict[str, Value]:
    """What the program has set on a configuration after it was made."""
    return {
        k: v for k, v in config.attributes.items() if k in config.facts.get("set", ())
    }


def _resize_vocabulary(thing: Thing, published: KnownModel, size: Value) -> None:
    wanted = whole(size)
    if wanted is None or not published.vocabulary:
        return
    width = hidden_of(published.parameters)
    change = (wanted - published.vocabulary) * width
    count = max(published.parameters + change, width)
    thing.attributes["_backbone"] = Parameter(count)


def set_named(thing: Thing, name: str) -> bool:
    """Give an object the weights of a known model of any library; False if no table
    has the name.
    """
    published = known_model(name)
    if known_vision(name) is not None:
        set_vision(thing, name, None)
    elif published is not None:
        set_published(thing, published)
    elif not set_counted(thing, name):
        return False
    thing.facts["is_model"] = True
    return True


def _named_in_trainer(thing: Thing) -> bool:
    """A trainer of TRL that is given the name of its model."""
    model = thing.argument(0, "model")
    if not thing.name.startswith("trl.") or not isinstance(model, str):
        return False
    published = known_model(model) if thing.last_name.endswith("Trainer") else None
    if published is None:
        return False
    set_published(thing, published)
    return True


def _served(thing: Thing) -> bool:
    """`LLM(NAME)` of vLLM."""
    name = thing.argument(0, "model")
    if thing.name != "vllm.LLM" or not isinstance(name, str):
        return False
    published = known_model(name)
    if published is None:
        thing.facts["unknown_model"] = name
    else:
        set_published(thing, published)
    return True


def _sentence_transformer(thing: Thing) -> bool:
    if thing.last_name not in _SENTENCES:
        return False
    name = thing.argument(0, "model_name_or_path", "model_name")
    published = known_model(name) if isinstance(name, str) else None
    if published is None:
        thing.facts["unknown_model"] = name
    else:
        set_published(thing, published)
    return True


_RECOGNISERS: tuple[Callable[[Thing], Any], ...] = (
    clip_part,
    _pretrained,
    _configured,
    vision_model,
    keras_application,
    _sentence_transformer,
    _named_in_trainer,
    _served,
    diffusion,
    loaded_model,
    stable_baselines_model,
    unseen_transformer,
)
