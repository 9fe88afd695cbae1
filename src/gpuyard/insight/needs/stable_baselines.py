"""The models that Stable-Baselines3 makes for its algorithms."""

from collections.abc import Mapping

from gpuyard.insight.needs.values import Parameter, Thing

_LIBRARIES = ("stable_baselines3.", "sb3_contrib.")
# Weights of its usual nets: two layers of 64, and the net for images of Atari games.
_POLICIES: Mapping[str, int] = {"MlpPolicy": 10_000, "CnnPolicy": 1_690_000}
# Algorithms that keep a second copy of their net, and those with several larger nets.
_WITH_COPY = ("DQN", "QRDQN")
_OF_MANY = ("SAC", "TD3", "DDPG", "TQC")
_MANY = 500_000


def stable_baselines_model(thing: Thing) -> bool:
    """Give an algorithm the weights of the policy that it is given by name."""
    policy = thing.argument(0, "policy")
    if not thing.name.startswith(_LIBRARIES) or not isinstance(policy, str):
        return False
    count = _POLICIES.get(policy)
    if count is None:
        return False
    algorithm = thing.last_name
    if algorithm in _WITH_COPY:
        count *= 2
    elif algorithm in _OF_MANY:
        count = 5 * count + _MANY
    thing.attributes["_backbone"] = Parameter(count)
    model_name = f"{algorithm}({policy})"
    thing.facts.update({"kind": "policy", "model_name": model_name, "by_name": True})
    return True
