"""What is known of published models, as the attributes that programs read."""

from gpuyard.insight.needs.tables import KnownModel
from gpuyard.insight.needs.values import UNKNOWN, Parameter, Thing, Value

_HIDDEN = (
    (16e6, 312),
    (50e6, 384),
    (300e6, 768),
    (500e6, 1024),
    (900e6, 1280),
    (2e9, 2048),
    (4e9, 2560),
    (9e9, 4096),
    (20e9, 5120),
    (1e15, 8192),
)


def hidden_of(parameters: int) -> int:
    """The usual width of a transformer with so many weights."""
    return next(width for most, width in _HIDDEN if parameters < most)


def attributes_of(published: KnownModel) -> dict[str, Value]:
    width = hidden_of(published.parameters)
    return {
        "hidden_size": width,
        "d_model": width,
        "n_embd": width,
        "dim": width,
        "vocab_size": published.vocabulary or UNKNOWN,
        "n_positions": published.context,
        "max_position_embeddings": published.context,
    }


def set_published(thing: Thing, published: KnownModel) -> None:
    """Give an object the weights of a published model."""
    thing.attributes["_backbone"] = Parameter(published.parameters)
    thing.attributes["config"] = Thing(
        "transformers.Config", thing.place, attributes=attributes_of(published)
    )
    thing.facts["published"] = published
    thing.facts["kind"] = published.kind
    thing.facts["model_name"] = published.name
    if not published.certain:
        thing.facts["by_name"] = True
