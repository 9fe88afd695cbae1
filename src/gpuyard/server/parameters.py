"""Query parameters that a route does not know are refused: a filter with a typing error
would otherwise show everything.
"""

from difflib import get_close_matches

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from gpuyard.domain.errors import Fault, InvalidInputError, quoted


# FastAPI would run what is not async in a thread, for each request.
async def refuse_unknown(request: Request) -> None:
    """InvalidInputError with one fault for each parameter that the route does not
    know.
    """
    if not request.query_params:
        return
    route: APIRoute = request.scope["route"]
    known = sorted(_names(route.dependant))
    unknown = sorted(request.query_params.keys() - set(known))
    if unknown:
        raise InvalidInputError([_fault(name, known) for name in unknown])


def _names(dependant: Dependant) -> set[str]:
    """The query parameters of a route and of all that it depends on."""
    names = {field.alias for field in dependant.query_params}
    for inner in dependant.dependencies:
        names |= _names(inner)
    return names


def _fault(name: str, known: list[str]) -> Fault:
    fault = "is no parameter of this route"
    close = get_close_matches(name, known, 1)
    if close:
        fault += f"; did you mean {close[0]}?"
    remedy = f"it knows {', '.join(known)}" if known else "it knows none"
    return Fault(quoted(name), fault, remedy)
