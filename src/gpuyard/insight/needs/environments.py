"""What is known of the usual environments of Gymnasium: the sizes of their spaces."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Mapping

from gpuyard.insight.needs.values import Thing, Value

_MAKERS = ("gym.make", "gymnasium.make", "gym.vector.make", "gymnasium.vector.make")
_VECTORS = ("SyncVectorEnv", "AsyncVectorEnv", "DummyVecEnv", "SubprocVecEnv")
_ATTRIBUTES = tuple(
    f"{before}{space}_space"
    for before in ("", "single_")
    for space in ("observation", "action")
)
# Wrappers of which the observations have another shape.
_CHANGES = re.compile(r"Atari|Stack|Gray|Resize|Flatten|Transform|Pixel|Dict|Discrete")
# Numbers of an observation; of an action, or the number of actions.
_SPACES: Mapping[str, tuple[int, int]] = {
    "CartPole": (4, 2),
    "Acrobot": (6, 3),
    "MountainCar": (2, 3),
    "MountainCarContinuous": (2, 1),
    "Pendulum": (3, 1),
    "LunarLander": (8, 4),
    "LunarLanderContinuous": (8, 2),
    "BipedalWalker": (24, 4),
    "Hopper": (11, 3),
    "HalfCheetah": (17, 6),
    "Walker2d": (17, 6),
    "Ant": (27, 8),
}


def give_spaces(thing: Thing, inner: Value) -> None:
    """Give an environment its spaces, as the attributes that programs read: a known one
    those of its name, one around another (`inner`) those of that.
    """
    if isinstance(inner, Thing):
        found = {name: inner.attributes.get(name) for name in _ATTRIBUTES}
        thing.attributes.update({k: v for k, v in found.items() if v is not None})
        return
    name = thing.argument(0, "id", "env_id", "env_name", default=None)
    if not thing.name.startswith(_MAKERS) or not isinstance(name, str):
        return
    sizes = _SPACES.get(name.partition("-v")[0])
    if sizes is None:
        return
    (observed, acted) = sizes
    for before in ("", "single_"):
        seen = Thing("gymnasium.spaces.Box", thing.place)
        seen.attributes["shape"] = (observed,)
        done = Thing("gymnasium.spaces.Discrete", thing.place)
        done.attributes.update({"n": acted, "shape": (acted,)})
        thing.attributes[f"{before}observation_space"] = seen
        thing.attributes[f"{before}action_space"] = done


def is_vector(thing: Thing) -> bool:
    """Whether it runs several environments, each made by a function of a list."""
    return thing.last_name in _VECTORS


def is_wrapper(thing: Thing) -> bool:
    """Whether it stands around an environment and leaves its spaces as they are."""
    is_known = thing.name.startswith(("gym.wrappers.", "gymnasium.wrappers."))
    return is_known and not _CHANGES.search(thing.last_name)
