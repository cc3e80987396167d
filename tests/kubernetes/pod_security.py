"""The Pod Security Standard "restricted", one function per control, and what this project asks beyond it.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ – a rule yields what is wrong with a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.kubernetes.manifests import Pod

Complaints = Iterator[str]

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def _security(container: dict[str, Any]) -> dict[str, Any]:
    return dict(container.get("securityContext", {}))


def host_namespaces(pod: Pod) -> Complaints:
    """No network, process or IPC namespace of the node."""
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(key))


def privileged(pod: Pod) -> Complaints:
    """No privileged container, and none of Windows' host processes."""
    for container in pod.containers:
        if _security(container).get("privileged") or _security(container).get("windowsOptions"):
            yield container["name"]


def capabilities(pod: Pod) -> Complaints:
    """All capabilities dropped; only NET_BIND_SERVICE may be added."""
    for container in pod.containers:
        given = _security(container).get("capabilities", {})
        if "ALL" not in given.get("drop", []) or set(given.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield container["name"]


def volume_types(pod: Pod) -> Complaints:
    """No volume of the node's own file system, nor any other kind that is not listed."""
    for volume in pod.spec.get("volumes", []):
        if set(volume) - {"name"} - VOLUMES:
            yield volume["name"]


def host_ports(pod: Pod) -> Complaints:
    """No port of the node."""
    for container in pod.containers:
        yield from (container["name"] for port in container.get("ports", []) if port.get("hostPort"))


def probes_of_other_hosts(pod: Pod) -> Complaints:
    """Probes and hooks ask the pod itself."""
    for container in pod.containers:
        asked = [container.get(f"{kind}Probe", {}) for kind in ("startup", "liveness", "readiness")]
        asked += container.get("lifecycle", {}).values()
        yield from (
            container["name"]
            for one in asked
            for how in ("httpGet", "tcpSocket")
            if one.get(how, {}).get("host")
        )


def process_settings(pod: Pod) -> Complaints:
    """Neither AppArmor, SELinux, /proc nor kernel settings are loosened."""
    contexts = [pod.spec.get("securityContext", {}), *(_security(container) for container in pod.containers)]
    for context in contexts:
        yield from (
            key for key in ("appArmorProfile", "seLinuxOptions", "procMount", "sysctls") if key in context
        )


def privilege_escalation(pod: Pod) -> Complaints:
    """No process gains more privileges than its parent."""
    for container in pod.containers:
        if _security(container).get("allowPrivilegeEscalation") is not False:
            yield container["name"]


def not_root(pod: Pod) -> Complaints:
    """runAsNonRoot for the pod, unmade by no container, and no user 0."""
    whole = pod.spec.get("securityContext", {})
    for container in pod.containers:
        context = {**whole, **_security(container)}
        if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
            yield container["name"]


def seccomp(pod: Pod) -> Complaints:
    """The runtime's filter of system calls, or one of the node's."""
    whole = pod.spec.get("securityContext", {})
    for container in pod.containers:
        profile = {**whole, **_security(container)}.get("seccompProfile", {})
        if profile.get("type") not in {"RuntimeDefault", "Localhost"}:
            yield container["name"]


def read_only_root(pod: Pod) -> Complaints:
    """Ours: nothing is written but to volumes, and the user is a number that no image has to know."""
    for container in pod.containers:
        context = {**pod.spec.get("securityContext", {}), **_security(container)}
        if context.get("readOnlyRootFilesystem") is not True or "runAsUser" not in context:
            yield container["name"]


def no_api_token(pod: Pod) -> Complaints:
    """Ours: no program here talks to the cluster."""
    if pod.spec.get("automountServiceAccountToken") is not False:
        yield pod.owner


def no_service_links(pod: Pod) -> Complaints:
    """Ours: a Service named fkd would set FKD_PORT and FKD_HTTP_PORT, which are settings."""
    if pod.spec.get("enableServiceLinks") is not False:
        yield pod.owner


def bounded(pod: Pod) -> Complaints:
    """Ours: what a container needs is asked for, its memory is limited, and so is a folder in the node's storage."""
    for container in pod.containers:
        resources = container.get("resources", {})
        if {"cpu", "memory"} - set(resources.get("requests", {})) or "memory" not in resources.get(
            "limits", {}
        ):
            yield container["name"]
    for volume in pod.spec.get("volumes", []):
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield volume["name"]


def pinned_images(pod: Pod) -> Complaints:
    """Ours: an image has a tag, and not one that moves."""
    for container in pod.containers:
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        if tag in {"", "latest"}:
            yield container["image"]


RULES: tuple[Callable[[Pod], Complaints], ...] = (
    host_namespaces, privileged, capabilities, volume_types, host_ports, probes_of_other_hosts, process_settings,
    privilege_escalation, not_root, seccomp, read_only_root, no_api_token, no_service_links, bounded, pinned_images,
)  # fmt: skip
