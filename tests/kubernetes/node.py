"""A node without a kubelet: lays out a pod's volumes, starts its containers, asks its probes; schedules nothing.

Pods share one network, in which the coordinator's Services are names of one address that is no loopback.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.docker.container import Container, Mount, copy_accounts
from tests.docker.dockerfile import ROOT, Stage, stages_of, with_bases
from tests.docker.server_image import ServerImage
from tests.kubernetes.manifests import Object, Pod, named, of_kind, variables_of

ADDRESS = "10.1.0.2"
"""Of every pod."""

PROBE = """
import ssl, sys, urllib.error, urllib.request
unverified = ssl._create_unverified_context()  # as a kubelet's
request = urllib.request.Request(sys.argv[1], headers=dict(pair.split('=', 1) for pair in sys.argv[2:]))
try:
    with urllib.request.urlopen(request, timeout=5, context=unverified) as answer:
        print(answer.status, answer.read().decode(), sep='\\n')
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), sep='\\n')
except OSError as error:
    print(0, error, sep='\\n')
"""


@dataclass(frozen=True)
class Answer:
    """What an HTTP request brought; status 0: no answer."""

    status: int
    body: str


@dataclass
class Node:
    """Where pods run."""

    folder: Path
    objects: Sequence[Object]
    network: int
    server: ServerImage
    secrets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._inside("ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo")

    def claim(self, name: str) -> Path:
        """The folder of a claim, which the pods' group may write to."""
        folder = self.folder / "claims" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            _give(folder, 0o2775)
        return folder

    def container(self, pod: Pod, name: str) -> tuple[Container, list[str]]:
        """A container of a pod, and what it runs."""
        spec = pod.container(name)
        root = self.folder / "roots" / pod.owner / name
        image = self._image(spec["image"])
        copy_accounts(root)
        (root / image.only("WORKDIR").lstrip("/")).mkdir(parents=True, exist_ok=True)
        names = ["localhost", *self._names()]
        (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {' '.join(names[1:])}\n")
        context = {**pod.spec["securityContext"], **spec["securityContext"]}
        assert context["readOnlyRootFilesystem"]
        container = Container(
            root,
            [*self._programs(spec["image"]), *(self._mount(pod, mount) for mount in spec["volumeMounts"])],
            {**image.pairs("ENV"), **self._path(spec["image"]), **variables_of(spec, self.objects)},
            workdir=image.only("WORKDIR"),
            user=context["runAsUser"],
            group=context["runAsGroup"],
            network=self.network,
        )
        return container, [*spec.get("command", image.listed("ENTRYPOINT")), *spec.get("args", [])]

    def ask(self, url: str, **headers: str) -> Answer:
        """Fetch a URL from within the network, trusting whoever answers."""
        given = [f"{name}={value}" for name, value in headers.items()]
        said = self._inside(sys.executable, "-c", PROBE, url, *given)
        status, _, body = said.partition("\n")
        return Answer(int(status), body)

    def probe(self, container: Object, kind: str) -> bool:
        """Whether a container's probe succeeds, asked once."""
        how = container[f"{kind}Probe"]["httpGet"]
        (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == how["port"]]
        url = urllib.parse.urlunsplit((how["scheme"].lower(), f"{ADDRESS}:{port}", how["path"], "", ""))
        return 200 <= self.ask(url).status < 400

    def certificate(self, port: int) -> bytes:
        """The certificate that is shown on a port, PEM."""
        code = "import ssl, sys; print(ssl.get_server_certificate((sys.argv[1], int(sys.argv[2]))), end='')"
        return self._inside(sys.executable, "-c", code, ADDRESS, str(port)).encode()

    def replace_secret(self, name: str, data: Mapping[str, bytes]) -> None:
        """Put other data into a Secret that pods have mounted."""
        self._write(self.folder / "secrets" / name, data, 0o440)

    def _inside(self, *command: str) -> str:
        entered = ["nsenter", f"--net=/proc/{self.network}/ns/net", *command]
        return subprocess.run(entered, capture_output=True, text=True, check=True, timeout=60).stdout

    def _names(self) -> list[str]:
        services = [found["metadata"] for found in of_kind(self.objects, "Service")]
        return [
            f"{one['name']}{rest}" for one in services for rest in ("", f".{one['namespace']}.svc", ".fkd")
        ]

    @staticmethod
    def _image(name: str) -> Stage:
        """What a Dockerfile says of an image."""
        repository, _, tag = name.partition(":")
        stage = tag.partition("-")[2] or "final"
        stages = stages_of(f"{repository.removeprefix('fkd-')}.Dockerfile")
        return Stage(stage, stages[stage].base, with_bases(stages, stage))

    def _programs(self, image: str) -> list[Mount]:
        """The server's image is built; the client's, whose torch takes minutes, is this environment."""
        return [
            Mount(self.server.installed, "/opt/fkd")
            if image.startswith("fkd-server")
            else Mount(ROOT, str(ROOT))
        ]

    @staticmethod
    def _path(image: str) -> dict[str, str]:
        if image.startswith("fkd-server"):
            return {}
        return {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

    def _mount(self, pod: Pod, mount: Object) -> Mount:
        volume = pod.volume(mount["name"])
        source, writable = self._source(pod, mount["name"], volume)
        if "subPath" in mount:
            source = source / mount["subPath"]
            assert source.exists(), f"subPath {mount['subPath']} is not in the volume yet"
        return Mount(source, mount["mountPath"], writable=writable and not mount.get("readOnly", False))

    def _source(self, pod: Pod, name: str, volume: Object) -> tuple[Path, bool]:
        """The folder of a volume, and whether it may be written."""
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]
            return self.claim(claim["claimName"]), not claim.get("readOnly", False)
        if "configMap" in volume:
            data = named(self.objects, "ConfigMap", volume["configMap"]["name"])["data"]
            folder = self.folder / "config" / volume["configMap"]["name"]
            return self._write(folder, {key: text.encode() for key, text in data.items()}, 0o644), False
        if "secret" in volume:
            secret = volume["secret"]
            folder = self.folder / "secrets" / secret["secretName"]
            if not folder.exists():
                self._write(folder, self.secrets[secret["secretName"]], secret["defaultMode"])
            return folder, False
        assert "emptyDir" in volume, volume
        folder = self.folder / "empty" / pod.owner / name
        folder.mkdir(parents=True, exist_ok=True)
        _give(folder, 0o2777)
        return folder, True

    @staticmethod
    def _write(folder: Path, data: Mapping[str, bytes], mode: int) -> Path:
        """Files as a kubelet lays them out: behind a link that changes all at once."""
        folder.mkdir(parents=True, exist_ok=True)
        version = folder / f"..{len(list(folder.iterdir()))}"
        version.mkdir()
        for name, content in data.items():
            (version / name).write_bytes(content)
            _give(version / name, mode)
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")
        fresh = folder / "..new"
        fresh.symlink_to(version.name)
        fresh.replace(folder / "..data")
        return folder


def _give(path: Path, mode: int, group: int = 65532) -> None:
    """To root and the pods' group."""
    os.chown(path, 0, group)
    path.chmod(mode)
