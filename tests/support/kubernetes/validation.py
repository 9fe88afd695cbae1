"""What the server refuses of a manifest with 422."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.support.kubernetes import errors, quantity
from tests.support.kubernetes.kinds import Kind
from tests.support.kubernetes.objects import Object

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_VALUE = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_ALNUM = "consist of lower case alphanumeric characters"
_LABEL_TEXT = (
    f"a lowercase RFC 1123 label must {_ALNUM} or '-', and must start and end with an"
    " alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation"
    f" is '{_LABEL}')"
)
_SUBDOMAIN_TEXT = (
    f"a lowercase RFC 1123 subdomain must {_ALNUM}, '-' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    f" '{_SUBDOMAIN}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-',"
    " '_' or '.', and must start and end with an alphanumeric character (e.g."
    f" 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
)
_QUALIFIED_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or"
    f" '123-abc', regex used for validation is '{_QUALIFIED}')"
)
_ENV_TEXT = (
    "a valid environment variable name must consist of alphabetic characters, digits,"
    " '_', '-', or '.', and must not start with a digit (e.g. 'my.env-name',  or"
    " 'MY_ENV.NAME',  or 'MyEnvName1', regex used for validation is"
    " '[-._a-zA-Z][-._a-zA-Z0-9]*')"
)
_COUNTS = (
    "parallelism",
    "completions",
    "backoffLimit",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
)
_ANNOTATIONS = 256 << 10
_DATA = 1 << 20
_OBJECT = 3 << 19
_SOURCES = ("emptyDir", "hostPath", "persistentVolumeClaim", "secret", "configMap")


@dataclass
class Causes:
    """What is wrong, gathered."""

    found: list[Object] = field(default_factory=list[Object])

    def invalid(self, where: str, value: object, why: str) -> None:
        shown = (
            f'"{value}"'
            if isinstance(value, str)
            else "{...}"
            if isinstance(value, dict)
            else value
        )
        self.add("FieldValueInvalid", where, f"Invalid value: {shown}: {why}")

    def required(self, where: str, why: str = "") -> None:
        self.add(
            "FieldValueRequired",
            where,
            f"Required value: {why}" if why else "Required value",
        )

    def unsupported(self, where: str, value: str, allowed: tuple[str, ...]) -> None:
        values = ", ".join(f'"{each}"' for each in allowed)
        self.add(
            "FieldValueNotSupported",
            where,
            f'Unsupported value: "{value}": supported values: {values}',
        )

    def add(self, reason: str, where: str, message: str) -> None:
        self.found.append({"reason": reason, "message": message, "field": where})


def check(kind: Kind, obj: Object) -> None:
    """Refuse what is not valid; `obj` has its defaults."""
    causes = Causes()
    _metadata(kind, obj["metadata"], causes)
    if len(json.dumps(obj)) > _OBJECT:
        raise errors.ApiError(500, "", "etcdserver: request is too large")
    if kind.plural == "pods":
        _pod_spec(obj["spec"], "spec", causes)
    elif kind.plural == "jobs":
        _job(obj, causes)
    elif kind.plural in ("persistentvolumeclaims", "resourcequotas"):
        spec = obj.get("spec") or {}
        wanted = (
            (spec.get("resources") or {}).get("requests")
            if kind.plural != "resourcequotas"
            else spec.get("hard")
        )
        _quantities(
            wanted or {},
            "spec.resources.requests" if "resources" in spec else "spec.hard",
            causes,
        )
    elif kind.plural in ("secrets", "configmaps"):
        _data(obj, causes)
    if causes.found:
        raise errors.unprocessable(kind, obj["metadata"].get("name", ""), causes.found)


def _metadata(kind: Kind, meta: Object, causes: Causes) -> None:
    called = meta.get("name") or meta.get("generateName", "").rstrip("-")
    if not called:
        causes.required("metadata.name", "name or generateName is required")
    else:
        _name(called, "metadata.name", causes, label=kind.plural == "namespaces")
    _labels(meta, "metadata", causes)


def _name(value: str, where: str, causes: Causes, *, label: bool) -> None:
    if not re.fullmatch(_LABEL if label else _SUBDOMAIN, value):
        causes.invalid(where, value, _LABEL_TEXT if label else _SUBDOMAIN_TEXT)
    limit = 63 if label else 253
    if len(value) > limit:
        causes.invalid(where, value, f"must be no more than {limit} characters")


def _labels(meta: Object, where: str, causes: Causes) -> None:
    if (
        sum(
            len(key) + len(str(value))
            for key, value in (meta.get("annotations") or {}).items()
        )
        > _ANNOTATIONS
    ):
        causes.add(
            "FieldValueTooLong",
            f"{where}.annotations",
            f"Too long: may not be more than {_ANNOTATIONS} bytes",
        )
    for part in ("labels", "annotations"):
        for key, value in (meta.get(part) or {}).items():
            _key(key, f"{where}.{part}", causes)
            if not isinstance(value, str):
                raise errors.bad_request(
                    "json: cannot unmarshal value into Go struct field"
                    f" ObjectMeta.{where}.{part} of type string"
                )
            if part == "labels" and len(value) > 63:
                causes.invalid(
                    f"{where}.labels", value, "must be no more than 63 characters"
                )
            if part == "labels" and not re.fullmatch(_VALUE, value):
                causes.invalid(f"{where}.labels", value, _VALUE_TEXT)


def _key(key: str, where: str, causes: Causes) -> None:
    prefix, slash, last = key.rpartition("/")
    if slash and not re.fullmatch(_SUBDOMAIN, prefix):
        causes.invalid(where, key, f"prefix part {_SUBDOMAIN_TEXT}")
    if not re.fullmatch(_QUALIFIED, last):
        causes.invalid(where, key, _QUALIFIED_TEXT)
    if len(last) > 63:
        causes.invalid(where, key, "name part must be no more than 63 characters")


def _data(obj: Object, causes: Causes) -> None:
    sizes = [
        len(value)
        for part in ("data", "stringData", "binaryData")
        for value in (obj.get(part) or {}).values()
    ]
    if sum(sizes) > (_DATA if obj.get("type") is None else _DATA * 4 // 3):
        causes.add(
            "FieldValueTooLong", "data", f"Too long: may not be more than {_DATA} bytes"
        )
    for key in {**(obj.get("data") or {}), **(obj.get("stringData") or {})}:
        if not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
            causes.invalid(
                f"data[{key}]",
                key,
                "a valid config key must consist of alphanumeric characters, '-', '_'"
                " or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used"
                " for validation is '[-._a-zA-Z0-9]+')",
            )


def _job(job: Object, causes: Causes) -> None:
    spec = job["spec"]
    called = job["metadata"].get("name", "")
    _integers(spec, "spec", dict.fromkeys(_COUNTS, 0), causes)
    indexed = spec["completionMode"] == "Indexed"
    if spec["completionMode"] not in ("Indexed", "NonIndexed"):
        causes.unsupported(
            "spec.completionMode", spec["completionMode"], ("NonIndexed", "Indexed")
        )
    if indexed and spec.get("completions") is None:
        causes.required("spec.completions", "when completion mode is Indexed")
    elif indexed and len(last := f"{called}-{max(0, spec['completions'] - 1)}") > 63:
        causes.invalid(
            "metadata.name",
            last,
            "will not able to create pod with invalid DNS label: must be no more "
            "than 63 characters",
        )
    _labels(spec["template"].get("metadata") or {}, "spec.template", causes)
    _pod_spec(spec["template"]["spec"], "spec.template.spec", causes)
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy not in ("Never", "OnFailure"):
        causes.unsupported(
            "spec.template.spec.restartPolicy", policy, ("OnFailure", "Never")
        )
    _failure_policy(spec, policy, causes)


def _failure_policy(spec: Object, restart: str, causes: Causes) -> None:
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    if rules and restart != "Never":
        why = 'only "Never" is supported when podFailurePolicy is specified'
        causes.invalid("spec.template.spec.restartPolicy", restart, why)
    for number, rule in enumerate(rules):
        where = f"spec.podFailurePolicy.rules[{number}]"
        if rule.get("action") not in ("FailJob", "Ignore", "Count", "FailIndex"):
            causes.unsupported(
                f"{where}.action",
                rule.get("action", ""),
                ("Count", "FailIndex", "FailJob", "Ignore"),
            )
        if bool(rule.get("onExitCodes")) == bool(rule.get("onPodConditions")):
            causes.invalid(
                where,
                rule,
                "specifying one of OnExitCodes and OnPodConditions is required",
            )
        codes = rule.get("onExitCodes") or {}
        if codes.get("operator") == "In" and 0 in codes.get("values", ()):
            causes.invalid(
                f"{where}.onExitCodes.values[0]", 0, "must not be 0 for the In operator"
            )


def _pod_spec(spec: Object, where: str, causes: Causes) -> None:
    volumes = _volumes(spec, where, causes)
    if not spec.get("containers"):
        causes.required(f"{where}.containers")
    names: set[str] = set()
    for part in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(part) or ()):
            place = f"{where}.{part}[{number}]"
            _container(container, place, volumes, causes)
            if container.get("name") in names:
                causes.add(
                    "FieldValueDuplicate",
                    f"{place}.name",
                    f'Duplicate value: "{container["name"]}"',
                )
            names.add(container.get("name", ""))
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        causes.unsupported(
            f"{where}.restartPolicy",
            spec["restartPolicy"],
            ("Always", "OnFailure", "Never"),
        )
    _integers(
        spec,
        where,
        {"activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 0},
        causes,
    )


def _volumes(spec: Object, where: str, causes: Causes) -> set[str]:
    for number, volume in enumerate(spec.get("volumes") or ()):
        _name(
            volume.get("name", ""),
            f"{where}.volumes[{number}].name",
            causes,
            label=True,
        )
        if not any(isinstance(volume.get(kind), dict) for kind in _SOURCES):
            causes.required(
                f"{where}.volumes[{number}]",
                f"must specify a volume type, of those here: {_SOURCES}",
            )
    return {volume.get("name", "") for volume in spec.get("volumes") or ()}


def _container(
    container: Object, where: str, volumes: set[str], causes: Causes
) -> None:
    if not container.get("name"):
        causes.required(f"{where}.name")
    else:
        _name(container["name"], f"{where}.name", causes, label=True)
    if not container.get("image"):
        causes.required(f"{where}.image")
    _typed(container, where)
    for number, variable in enumerate(container.get("env") or ()):
        if not re.fullmatch(r"[-._a-zA-Z][-._a-zA-Z0-9]*", variable.get("name", "")):
            causes.invalid(
                f"{where}.env[{number}].name", variable.get("name", ""), _ENV_TEXT
            )
    paths: set[str] = set()
    for number, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            causes.add(
                "FieldValueNotFound",
                f"{where}.volumeMounts[{number}].name",
                f'Not found: "{mount["name"]}"',
            )
        if mount["mountPath"] in paths:
            causes.invalid(
                f"{where}.volumeMounts[{number}].mountPath",
                mount["mountPath"],
                "must be unique",
            )
        paths.add(mount["mountPath"])
    _resources(container.get("resources") or {}, f"{where}.resources", causes)


def _typed(container: Object, where: str) -> None:
    """400 for what is no text where there must be some: it is not even read."""
    found = [
        ("EnvVar", "env.value", each.get("value", ""))
        for each in container.get("env") or ()
    ]
    for part in ("command", "args"):
        found += [("Container", part, each) for each in container.get(part) or ()]
    for kind, part, value in found:
        if not isinstance(value, str) and value is not None:
            what = (
                "bool"
                if isinstance(value, bool)
                else "number"
                if isinstance(value, int | float)
                else "object"
            )
            place = re.sub(r"\[\d+\]", "", where)
            raise errors.bad_request(
                f'{kind} in version "v1" cannot be handled: json: cannot unmarshal'
                f" {what} into Go struct field {kind}.{place}.{part} of type string"
            )


def _integers(spec: Object, where: str, least: dict[str, int], causes: Causes) -> None:
    for key, lowest in least.items():
        value = spec.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int)
        ):
            raise errors.bad_request(
                f"json: cannot unmarshal value into Go struct field {where}.{key} of"
                " type int64"
            )
        if value is not None and value < lowest:
            causes.invalid(
                f"{where}.{key}", value, f"must be greater than or equal to {lowest}"
            )


def _resources(resources: Object, where: str, causes: Causes) -> None:
    requests = resources.get("requests") or {}
    limits = resources.get("limits") or {}
    good = _quantities(limits, f"{where}.limits", causes) and _quantities(
        requests, f"{where}.requests", causes
    )
    for resource, value in {**limits, **requests}.items() if good else ():
        limit = limits.get(resource)
        extended = "/" in resource
        if extended and quantity.parse(value) % 1:
            causes.invalid(f"{where}.requests[{resource}]", value, "must be an integer")
        if extended and limit is None:
            causes.required(
                f"{where}.limits", "Limit must be set for non overcommitable resources"
            )
        elif limit is not None and resource in requests:
            _within(resource, requests[resource], limit, where, causes)


def _within(
    resource: str, request: Any, limit: Any, where: str, causes: Causes
) -> None:
    asked = quantity.parse(request)
    allowed = quantity.parse(limit)
    if "/" in resource and asked != allowed:
        causes.invalid(
            f"{where}.requests",
            str(request),
            f"must be equal to {resource} limit of {limit}",
        )
    elif asked > allowed:
        causes.invalid(
            f"{where}.requests",
            str(request),
            f"must be less than or equal to {resource} limit of {limit}",
        )


def _quantities(values: Object, where: str, causes: Causes) -> bool:
    """Whether all can be read; 400 for what is no quantity at all."""
    good = True
    for resource, value in values.items():
        try:
            number = quantity.parse(value)
        except ValueError as error:
            raise errors.bad_request(
                f"unable to parse quantity's suffix in {where}[{resource}]: {error}"
            ) from None
        if number < 0:
            causes.invalid(
                f"{where}[{resource}]", str(value), "must be greater than or equal to 0"
            )
            good = False
    return good


def check_change(kind: Kind, old: Object, new: Object) -> None:
    """Refuse a change of what must stay."""
    causes = Causes()
    if kind.plural == "jobs":
        fixed = (
            "selector",
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
        )
        for key in (*fixed, *(() if _elastic(old, new) else ("completions",))):
            if old["spec"].get(key) != new["spec"].get(key):
                causes.invalid(
                    f"spec.{key}", new["spec"].get(key), "field is immutable"
                )
        loose = bool(old["spec"].get("suspend")) and not old["status"].get("startTime")
        if _template(old, loose) != _template(new, loose):
            causes.invalid(
                "spec.template", new["spec"]["template"], "field is immutable"
            )
    if kind.plural == "pods" and _fixed(old) != _fixed(new):
        causes.add(
            "FieldValueForbidden",
            "spec",
            "Forbidden: pod updates may not change fields other than"
            " `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`"
            " (only additions to existing"
            " tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to"
            " 1 if it was previously negative)",
        )
    if (
        kind.plural in ("secrets", "configmaps")
        and old.get("immutable")
        and old.get("data") != new.get("data")
    ):
        causes.add(
            "FieldValueForbidden",
            "data",
            "Forbidden: field is immutable when `immutable` is set",
        )
    if causes.found:
        raise errors.unprocessable(kind, new["metadata"]["name"], causes.found)


def _elastic(old: Object, new: Object) -> bool:
    """An indexed Job may grow and shrink, completions and parallelism as one."""
    spec = new["spec"]
    return old["spec"].get("completionMode") == "Indexed" and spec.get(
        "completions"
    ) == spec.get("parallelism")


def _template(job: Object, loose: bool) -> Object:
    """What of a Job's template must stay: of one that is suspended and never started,
    not where it may run.
    """
    spec = {**job["spec"]["template"]["spec"]}
    meta = job["spec"]["template"].get("metadata") or {}
    for key in (
        ("nodeSelector", "affinity", "tolerations", "schedulingGates") if loose else ()
    ):
        spec.pop(key, None)
    return {
        "spec": spec,
        **(
            {}
            if loose
            else {"labels": meta.get("labels"), "annotations": meta.get("annotations")}
        ),
    }


def _fixed(pod: Object) -> Object:
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in ("activeDeadlineSeconds", "tolerations")
    }
    for part in ("containers", "initContainers"):
        spec[part] = [{**each, "image": ""} for each in spec.get(part) or ()]
    return spec
