"""Every object that kustomize makes is one that a cluster takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.manifests import COMPONENTS, TARGETS, named, of_kind, render
from tests.kubernetes.schemas import check

VERSIONS = ("1.29", "1.37")
"""The oldest release that README.md promises, and the newest whose schemas are to be had."""

ALL = [(target, ()) for target in TARGETS] + [("overlays/mtls", (component,)) for component in COMPONENTS]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("target", "components"), ALL, ids=lambda value: "+".join(value) if isinstance(value, tuple) else value
)
def test_every_object_is_valid(target: str, components: tuple[str, ...], version: str) -> None:
    objects = render(target, *components)
    assert objects
    for found in objects:
        check(found, version)


@pytest.mark.parametrize("target", TARGETS)
def test_no_two_objects_have_the_same_name_and_all_are_in_the_namespace(target: str) -> None:
    objects = render(target)
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(names) == len(set(names))
    assert {found["metadata"].get("namespace") for found in objects if found["kind"] != "Namespace"} == {
        "fkd"
    }


def _set(found: dict[str, Any], path: str, value: object) -> None:
    *places, last = path.split(".")
    for place in places:
        found = found[int(place)] if isinstance(found, list) else found[place]
    found[last] = value


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("StatefulSet", "fkd-coordinator", "spec.replica", 2),
        ("StatefulSet", "fkd-coordinator", "spec.replicas", "two"),
        ("StatefulSet", "fkd-coordinator", "spec.template.spec.containers.0.readinesProbe", {}),
        ("Service", "fkd-coordinator", "spec.ports.0.appProtokoll", "grpc"),
        ("NetworkPolicy", "deny-all", "spec.policyTypes", "Ingress"),
        ("Job", "fkd-site-a", "spec.podFailurePolicies", {}),
        ("Job", "fkd-site-a", "spec.podFailurePolicy.rules.2.onExitCodes.codes", [1]),
        ("Certificate", "fkd-coordinator", "spec.dnsName", ["a"]),
        ("Certificate", "fkd-coordinator", "spec.issuerRef", {"kind": "Issuer"}),
        ("Issuer", "fkd", "spec.ca.secret", "x"),
        ("ServiceMonitor", "fkd-coordinator", "spec.endpoints.0.bearer", "x"),
        ("ServiceMonitor", "fkd-coordinator", "spec.endpoints.0.authorization.credentials", {"name": "fkd-http"}),
    ],
)  # fmt: skip
def test_a_mistake_is_noticed(kind: str, name: str, path: str, value: object) -> None:
    found = named(render("overlays/mtls", "service-monitor"), kind, name)
    check(found, VERSIONS[0])
    _set(found, path, value)
    with pytest.raises(ValueError, match=name):
        check(found, VERSIONS[0])


def test_a_job_with_a_failure_policy_never_restarts_a_pod_in_place() -> None:
    jobs = of_kind(render("overlays/mtls"), "Job")
    assert jobs and {job["spec"]["template"]["spec"]["restartPolicy"] for job in jobs} == {"Never"}
