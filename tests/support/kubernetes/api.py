"""The API server: authentication, authorization, and a handler per verb."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tests.support.kubernetes import discovery, errors, validation
from tests.support.kubernetes.access import Access, Ask
from tests.support.kubernetes.admission import Admission
from tests.support.kubernetes.clock import seconds
from tests.support.kubernetes.deletion import delete
from tests.support.kubernetes.execution import execute
from tests.support.kubernetes.kubelet import Kubelet, pick
from tests.support.kubernetes.logs import Wanted, since
from tests.support.kubernetes.objects import (
    Object,
    clone,
    deleting,
    ended,
    name,
    set_condition,
    uid,
)
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.patching import patched
from tests.support.kubernetes.request import Target, target_of
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.watching import Reader

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_ORPHANS = (
    '299 - "child pods are preserved by default when jobs are deleted; set'
    " propagationPolicy=Background to remove them or set propagationPolicy=Orphan to"
    ' suppress this warning"'
)


_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
_SUBRESOURCES = {("pods", "log"), ("pods", "eviction")}


@dataclass
class Api:
    """Everything behind `/`."""

    store: Store
    options: Options
    access: Access
    admission: Admission
    kubelet: Kubelet
    failed: Callable[[Exception], None]

    def __post_init__(self) -> None:
        self._reader = Reader(self.store, self.options)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/{path:path}", self._handle, methods=_METHODS),
                WebSocketRoute("/{path:path}", self._exec),
            ]
        )

    async def _exec(self, socket: WebSocket) -> None:
        """A command in a container; the only path with WebSockets here."""
        try:
            token = self.access.user(socket.headers.get("authorization"))
            target = target_of(socket.url.path)
            if target is None or (target.plural, target.sub) != ("pods", "exec"):
                raise errors.no_such_path()
            self.access.check(token, target.ask("GET", watch=False))
            pod = self.store.get("pods", target.namespace, target.name)
            query = socket.query_params
            container = pick(pod, query.get("container"))
            command = query.getlist("command")
            if not command:
                raise errors.bad_request(
                    "you must specify at least 1 command for the container"
                )
            run = self.kubelet.container(pod, container)
            await execute(socket, run, self.options)
        except errors.ApiError as error:
            await socket.send_denial_response(JSONResponse(error.status, error.code))
        except Exception as error:
            self.failed(error)
            raise

    async def _handle(self, request: Request) -> Response:
        try:
            token = self.access.user(request.headers.get("authorization"))
            target = target_of(request.url.path)
            if target is None:
                return JSONResponse(
                    discovery.answer(
                        request.url.path,
                        self.options.version,
                        kueue=bool(self.options.kueue),
                    )
                )
            if target.plural == "selfsubjectaccessreviews":
                return self._review(token, await _body(request))
            watch = request.query_params.get("watch") in ("true", "True", "1")
            self.access.check(token, target.ask(request.method, watch))
            self._exists(target)
            return await self._answer(request, target, watch)
        except errors.ApiError as error:
            return JSONResponse(error.status, error.code, error.headers)
        except ClientDisconnect:
            # It left before all of its request was here; nobody reads this.
            return Response()
        except Exception as error:  # noqa: BLE001
            self.failed(error)
            broken = errors.ApiError(
                500, "InternalError", f"an error of the fake cluster: {error!r}"
            )
            return JSONResponse(broken.status, 500)

    def _exists(self, target: Target) -> None:
        if (
            target.sub
            and (target.plural, target.sub) not in _SUBRESOURCES
            and target.sub != "status"
        ):
            raise errors.no_such_path()
        assert target.kind

    async def _answer(self, request: Request, target: Target, watch: bool) -> Response:
        query = dict(request.query_params)
        if request.method == "GET":
            if target.sub == "log":
                return self._log(target, query)
            if watch:
                return StreamingResponse(
                    self._reader.watch(target, query), media_type="application/json"
                )
            if target.name:
                return JSONResponse(
                    self.store.get(target.plural, target.namespace, target.name)
                )
            return JSONResponse(self._reader.page(target, query))
        body = await _body(request)
        if request.method == "POST":
            if target.sub == "eviction":
                return self._evict(target, body)
            return self._create(target, body, query)
        if request.method == "DELETE":
            return self._delete(target, {**query, **(body or {})}, query)
        return self._change(request, target, body)

    def _review(self, token: str, body: Object) -> Response:
        wanted = body["spec"].get("resourceAttributes") or {}
        resource = wanted.get("resource", "")
        if wanted.get("subresource"):
            resource += f"/{wanted['subresource']}"
        ask = Ask(
            wanted.get("verb", ""),
            wanted.get("group", ""),
            resource,
            wanted.get("namespace", ""),
            wanted.get("name", ""),
        )
        allowed = self.access.allows(token, ask)
        return JSONResponse(
            {
                **body,
                "metadata": {"creationTimestamp": None},
                "status": {"allowed": allowed},
            },
            201,
        )

    def _create(self, target: Target, body: Object, query: dict[str, str]) -> Response:
        if target.name or (target.kind.namespaced and not target.namespace):
            raise _no_method()
        if body.get("kind", target.kind.kind) != target.kind.kind:
            raise errors.bad_request(
                f'{body["kind"]} in version "{body.get("apiVersion")}" cannot be'
                f" handled as a {target.kind.kind}"
            )
        if (body.get("metadata") or {}).get(
            "namespace", target.namespace
        ) != target.namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent"
                " on the request"
            )
        made = self.admission.create(
            target.plural, target.namespace, body, dry=query.get("dryRun") == "All"
        )
        return JSONResponse(self.store.current(target.plural, made) or made, 201)

    def _change(self, request: Request, target: Target, body: Any) -> Response:
        if not target.name:
            raise _no_method()
        old = self.store.get(target.plural, target.namespace, target.name)
        content = request.headers.get("content-type", "")
        new = clone(body) if request.method == "PUT" else patched(old, body, content)
        for key in (
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "generation",
        ):
            if key in old["metadata"]:
                new["metadata"][key] = old["metadata"][key]
        if target.sub != "status" and "status" in old:
            new["status"] = old["status"]
        if target.sub != "status":
            validation.check(target.kind, new)
            validation.check_change(target.kind, old, new)
            if old.get("spec") != new.get("spec") and "generation" in old["metadata"]:
                new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        return JSONResponse(self.store.update(target.plural, new))

    def _delete(
        self, target: Target, options: Object, query: dict[str, str]
    ) -> Response:
        if not target.name:
            listing = self._reader.page(target, query)
            for each in listing["items"]:
                self._remove(target, each, options)
            return JSONResponse(listing)
        obj = self.store.get(target.plural, target.namespace, target.name)
        _check_preconditions(target, obj, options.get("preconditions") or {})
        gone = self._remove(target, obj, options)
        warn = (
            target.plural == "jobs"
            and not options.get("propagationPolicy")
            and "orphanDependents" not in options
        )
        headers = {"Warning": _ORPHANS} if warn else {}
        if self.store.current(target.plural, obj) or target.plural == "pods":
            return JSONResponse(gone, headers=headers)
        details = {"name": name(obj), "kind": target.plural, "uid": uid(obj)}
        group = {"group": target.group} if target.group else {}
        return JSONResponse(
            {**_SUCCESS, "details": {**details, **group}}, headers=headers
        )

    def _remove(self, target: Target, obj: Object, options: Object) -> Object:
        policy = options.get("propagationPolicy")
        if policy not in (None, "Background", "Foreground", "Orphan"):
            raise errors.bad_request(f'invalid propagation policy: "{policy}"')
        if "orphanDependents" in options:
            policy = (
                "Orphan"
                if str(options["orphanDependents"]).lower() == "true"
                else "Background"
            )
        default = (
            self.options.job_propagation if target.plural == "jobs" else "Background"
        )
        grace = options.get("gracePeriodSeconds")
        return delete(
            self.store,
            target.plural,
            obj,
            policy or default,
            None if grace is None else int(grace),
        )

    def _evict(self, target: Target, body: Object) -> Response:
        pod = self.store.get("pods", target.namespace, target.name)
        options = (body or {}).get("deleteOptions") or {}
        evict(self.store, pod, options.get("gracePeriodSeconds"))
        return JSONResponse(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "code": 201,
            },
            201,
        )

    def _log(self, target: Target, query: dict[str, str]) -> Response:
        pod = self.store.get("pods", target.namespace, target.name)
        container = pick(pod, query.get("container"))
        if _true(query.get("previous")):
            raise errors.bad_request(
                f'previous terminated container "{container}" in pod "{name(pod)}" not'
                " found"
            )
        begin = seconds(query["sinceTime"]) if query.get("sinceTime") else None
        if query.get("sinceSeconds"):
            begin = since(int(query["sinceSeconds"]))
        wanted = Wanted(
            _true(query.get("follow")),
            _true(query.get("timestamps")),
            _number(query, "tailLines"),
            begin,
            _number(query, "limitBytes"),
        )
        return StreamingResponse(
            self.kubelet.log(pod, container, wanted), media_type="text/plain"
        )


def evict(store: Store, pod: Object, grace_s: int | None = None) -> None:
    """End a pod as `kubectl drain` does: politely."""
    if not deleting(pod) and not ended(pod):
        with store.edit("pods", pod) as draft:
            set_condition(
                draft,
                "DisruptionTarget",
                "True",
                store.clock.stamp(),
                reason="EvictionByEvictionAPI",
                message="Eviction API: evicting",
            )
    delete(store, "pods", pod, grace_s=grace_s)


def _no_method() -> errors.ApiError:
    return errors.ApiError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )


def _check_preconditions(target: Target, obj: Object, wanted: Object) -> None:
    for key, field in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(key) and wanted[key] != obj["metadata"][key]:
            why = (
                f"Precondition failed: {field} in precondition: {wanted[key]},"
                f" {field} in object meta: {obj['metadata'][key]}"
            )
            raise errors.conflict(target.kind, name(obj), why)


def _true(value: str | None) -> bool:
    return (value or "").lower() in ("true", "1")


def _number(query: dict[str, str], key: str) -> int | None:
    return int(query[key]) if query.get(key) else None


async def _body(request: Request) -> Any:
    data = await request.body()
    if not data:
        return {}
    try:
        return json.loads(data)
    except ValueError as error:
        raise errors.bad_request(
            f"the object provided is unrecognized: {error}"
        ) from None
