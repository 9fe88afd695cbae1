"""What is known of the usual environments of Gymnasium: the sizes of their spaces."""

from collections.abc import Mapping

from gpuyard.insight.needs.values import Thing

_MAKERS = ("gym.make", "gymnasium.make", "gym.vector.make", "gymnasium.vector.make")
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


def give_spaces(thing: Thing) -> None:
    """Give a known environment its spaces, as the attributes that programs read."""
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
