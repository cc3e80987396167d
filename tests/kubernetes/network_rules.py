"""Answers, from NetworkPolicies, who may open a connection to whom; no packet is sent."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class End:
    """One end of a connection: a pod, or an address outside the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] | None = None
    address: str = ""


def allowed(policies: Sequence[Object], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies let `source` connect to a port of `target`; both ends have their say."""
    return _side(policies, "Egress", source, target, port, protocol) and _side(
        policies, "Ingress", target, source, port, protocol
    )


def _side(policies: Sequence[Object], side: str, own: End, other: End, port: int, protocol: str) -> bool:
    if own.labels is None:
        return True  # not a pod: no policy speaks of it
    mine = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == own.namespace
        and side in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], own.labels)
    ]
    rules = [rule for policy in mine for rule in policy["spec"].get(side.lower(), [])]
    return not mine or any(_matches(rule, side, own, other, port, protocol) for rule in rules)


def _matches(rule: Object, side: str, own: End, other: End, port: int, protocol: str) -> bool:
    peers = rule.get("from" if side == "Ingress" else "to")
    through = [
        one.get("protocol", "TCP") == protocol and one["port"] == port for one in rule.get("ports", [])
    ]
    return (not through or any(through)) and (peers is None or any(_is(peer, own, other) for peer in peers))


def _is(peer: Object, own: End, other: End) -> bool:
    if "ipBlock" in peer:
        block = ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return bool(other.address) and ipaddress.ip_address(other.address) in block
    if other.labels is None:
        return False
    spaces = peer.get("namespaceSelector")
    named = {"kubernetes.io/metadata.name": other.namespace}
    same_space = other.namespace == own.namespace if spaces is None else selects(spaces, named)
    return same_space and selects(peer.get("podSelector", {}), other.labels)


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a selector of labels alone selects something."""
    assert set(selector) <= {"matchLabels"}, f"only matchLabels is understood here, not {selector}"
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
