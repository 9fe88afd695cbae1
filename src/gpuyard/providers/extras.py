"""The libraries that some providers need, which are extras of the package gpuyard."""

from importlib.util import find_spec


class MissingExtraError(ModuleNotFoundError):
    """A provider lacks a library; the message names the extra to install."""


def require(extra: str, *modules: str) -> None:
    """MissingExtraError unless all these modules are installed.

    They are not imported yet: some take long.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(
                f"Provider {extra} needs the module {module}: pip install"
                f" 'gpuyard[{extra}]'",
                name=module,
            )
