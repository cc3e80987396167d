"""What kustomize makes of deploy/kubernetes, as objects to ask; validates nothing."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.tools import require_tool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"

Object = dict[str, Any]

OVERLAYS = tuple(sorted(path.name for path in (FOLDER / "overlays").iterdir()))
COMPONENTS = tuple(sorted(path.name for path in (FOLDER / "components").iterdir()))
TARGETS = ("base", "demo-data", "site", *(f"overlays/{name}" for name in OVERLAYS))
"""Everything that can be applied by itself."""


def render(target: str, *components: str) -> list[Object]:
    """The objects of a target, with components on top."""
    return copy.deepcopy(_rendered(target, components))


@functools.cache
def _rendered(target: str, components: tuple[str, ...]) -> list[Object]:
    if not components:
        return _built(FOLDER / target)
    with tempfile.TemporaryDirectory() as folder:
        layer = {
            "resources": [os.path.relpath(FOLDER / target, folder)],
            "components": [os.path.relpath(FOLDER / "components" / name, folder) for name in components],
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(layer))
        return _built(Path(folder))


def _built(folder: Path) -> list[Object]:
    done = subprocess.run(
        [require_tool("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """The objects of a kind."""
    return [found for found in objects if found["kind"] == kind]


def named(objects: Sequence[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


@dataclass(frozen=True)
class Pod:
    """The pods that a workload makes."""

    owner: str
    namespace: str
    labels: Mapping[str, str]
    spec: Object
    claims: tuple[str, ...] = ()
    """Volumes that the workload makes for each pod."""

    @property
    def containers(self) -> list[Object]:
        """All its containers, those that run first included."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def container(self, name: str) -> Object:
        """One of its containers."""
        (found,) = [one for one in self.containers if one["name"] == name]
        return found

    def volume(self, name: str) -> Object:
        """A volume by name; what it is made of."""
        if name in self.claims:
            return {"persistentVolumeClaim": {"claimName": f"{name}-{self.owner}-0"}}
        (found,) = [one for one in self.spec["volumes"] if one["name"] == name]
        return {key: value for key, value in found.items() if key != "name"}


def pods_of(objects: Sequence[Object]) -> list[Pod]:
    """The pods of every workload."""
    return list(_pods(objects))


def _pods(objects: Sequence[Object]) -> Iterator[Pod]:
    for found in objects:
        template = found.get("spec", {}).get("template", {})
        if "spec" in template:
            claims = [claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", [])]
            labels = template.get("metadata", {}).get("labels", {})
            meta = found["metadata"]
            yield Pod(meta["name"], meta.get("namespace", "default"), labels, template["spec"], tuple(claims))


def variables_of(container: Object, objects: Sequence[Object]) -> dict[str, str]:
    """The environment that a container is given beside its image's."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found.update(named(objects, "ConfigMap", source["configMapRef"]["name"])["data"])
    found.update({one["name"]: one["value"] for one in container.get("env", [])})
    return found
