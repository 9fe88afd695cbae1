"""How many examples Hypothesis generates: few every day, all in `make soak`.

`make soak` asks for the profile `soak`. The other one, `everyday`, generates the same
examples in each run: it draws no constants of our modules.
"""

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

_SHARE = 5
_FEWEST = 5
_DEFAULT = 100


def register_profiles() -> None:
    """Make both profiles known, and use the everyday one unless told otherwise.

    Neither has a deadline: a busy machine must not fail a test.
    """
    settings.register_profile("soak", max_examples=_DEFAULT, deadline=None)
    settings.register_profile(
        "everyday",
        max_examples=_DEFAULT // _SHARE,
        derandomize=True,
        deadline=None,
    )
    settings.load_profile("everyday")
    _draw_no_constants_of_ours()


def _draw_no_constants_of_ours() -> None:
    """Hypothesis parses every module of ours that is loaded, for the constants in it. In
    each worker that takes a second, and the examples depend on which tests ran before.
    """
    with_modules = providers._get_local_constants

    def by_profile() -> Constants:
        is_everyday = settings.get_current_profile_name() == "everyday"
        return Constants() if is_everyday else with_modules()

    providers._get_local_constants = by_profile


def examples(number: int) -> int:
    """`number` in the profile `soak`, a fifth of it every day."""
    if settings.get_current_profile_name() == "soak":
        return number
    return max(_FEWEST, number // _SHARE)
