"""Every pod is a restricted one, and every rule that says so can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kubernetes.manifests import TARGETS, Object, Pod, named, pods_of, render
from tests.kubernetes.pod_security import RULES

Spec = dict[str, Any]


def pods() -> list[tuple[str, Pod]]:
    return [(target, pod) for target in TARGETS for pod in pods_of(render(target))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_pod_breaks_the_rule(rule: Callable[[Pod], Any]) -> None:
    found = pods()
    assert len(found) > 10
    assert {f"{target} {pod.owner}": list(rule(pod)) for target, pod in found if list(rule(pod))} == {}


def first(spec: Spec) -> Spec:
    container: Spec = spec["containers"][0]
    return container


VIOLATIONS: list[tuple[str, Callable[[Spec], object]]] = [
    ("host_namespaces", lambda spec: spec.update(hostNetwork=True)),
    ("host_namespaces", lambda spec: spec.update(hostPID=True)),
    ("host_namespaces", lambda spec: spec.update(hostIPC=True)),
    ("privileged", lambda spec: first(spec)["securityContext"].update(privileged=True)),
    ("privileged", lambda spec: first(spec)["securityContext"].update(windowsOptions={"hostProcess": True})),
    ("capabilities", lambda spec: first(spec)["securityContext"].pop("capabilities")),
    ("capabilities", lambda spec: first(spec)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"])),
    ("capabilities", lambda spec: spec["initContainers"][0]["securityContext"].pop("capabilities")),
    ("volume_types", lambda spec: spec["volumes"].append({"name": "node", "hostPath": {"path": "/"}})),
    ("host_ports", lambda spec: first(spec)["ports"][0].update(hostPort=50051)),
    ("probes_of_other_hosts", lambda spec: first(spec)["livenessProbe"]["httpGet"].update(host="10.0.0.1")),
    ("process_settings", lambda spec: spec["securityContext"].update(sysctls=[{"name": "a", "value": "b"}])),
    ("process_settings", lambda spec: first(spec)["securityContext"].update(procMount="Unmasked")),
    ("privilege_escalation", lambda spec: first(spec)["securityContext"].pop("allowPrivilegeEscalation")),
    ("not_root", lambda spec: spec["securityContext"].pop("runAsNonRoot")),
    ("not_root", lambda spec: first(spec)["securityContext"].update(runAsNonRoot=False)),
    ("not_root", lambda spec: first(spec)["securityContext"].update(runAsUser=0)),
    ("seccomp", lambda spec: spec["securityContext"].pop("seccompProfile")),
    ("seccomp", lambda spec: first(spec)["securityContext"].update(seccompProfile={"type": "Unconfined"})),
    ("read_only_root", lambda spec: first(spec)["securityContext"].pop("readOnlyRootFilesystem")),
    ("read_only_root", lambda spec: spec["securityContext"].pop("runAsUser")),
    ("no_api_token", lambda spec: spec.pop("automountServiceAccountToken")),
    ("no_service_links", lambda spec: spec.pop("enableServiceLinks")),
    ("bounded", lambda spec: first(spec)["resources"].pop("limits")),
    ("bounded", lambda spec: first(spec)["resources"]["requests"].pop("cpu")),
    ("bounded", lambda spec: spec["volumes"].append({"name": "scratch", "emptyDir": {}})),
    ("pinned_images", lambda spec: first(spec).update(image="registry:5000/fkd-server")),
    ("pinned_images", lambda spec: first(spec).update(image="fkd-server:latest")),
]


@pytest.mark.parametrize(("rule", "violate"), VIOLATIONS)
def test_the_rule_complains_of(rule: str, violate: Callable[[Spec], object]) -> None:
    (pod,) = pods_of(render("base"))
    violate(pod.spec)
    assert [found.__name__ for found in RULES if list(found(pod))] == [rule]


def test_every_rule_is_violated_once_here() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for rule, _ in VIOLATIONS}


@pytest.mark.parametrize(
    "target", ["base", "demo-data", "overlays/local", "overlays/mtls", "overlays/remote-site"]
)
def test_the_namespace_enforces_the_standard(target: str) -> None:
    labels = named(render(target), "Namespace", "fkd")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_service_accounts_hand_out_no_tokens() -> None:
    accounts: list[Object] = [
        one for target in TARGETS for one in render(target) if one["kind"] == "ServiceAccount"
    ]
    assert accounts and all(one["automountServiceAccountToken"] is False for one in accounts)
