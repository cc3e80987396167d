"""What the manifests describe, started: probes, tokens, certificates, and a whole run of the overlay `local`."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from tests.client_network.coordinator import write_prepared
from tests.docker.container import Running, own_network, require_namespaces
from tests.docker.server_image import ServerImage, server_image
from tests.kubernetes.authority import Authority
from tests.kubernetes.manifests import Object, Pod, named, of_kind, pods_of, render
from tests.kubernetes.node import ADDRESS, Node

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOKEN = b"a-token-that-only-prometheus-knows"
PATIENCE_S = 150.0


@pytest.fixture(scope="module")
def server() -> ServerImage:
    require_namespaces()
    return server_image()


@pytest.fixture
def start_node(server: ServerImage, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes nodes with a network of their own, which go with the test."""
    with own_network() as network:

        def start_node(objects: list[Object], **secrets: dict[str, bytes]) -> Node:
            given = {name.replace("_", "-"): data for name, data in secrets.items()}
            return Node(tmp_path, objects, network, server, {"fkd-http": {"token": TOKEN}, **given})

        yield start_node


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def mtls(start_node: Callable[..., Node], authority: Authority) -> Node:
    """The overlay `mtls`, its certificates signed, its run prepared."""
    objects = render("overlays/mtls")
    asked = [found for found in of_kind(objects, "Certificate") if not found["spec"].get("isCA")]
    secrets = {found["spec"]["secretName"].replace("-", "_"): authority.secret_for(found) for found in asked}
    node = start_node(objects, **secrets)
    write_prepared(node.claim("state-fkd-coordinator-0") / "prepared")
    return node


def pod_of(node: Node, owner: str) -> Pod:
    (pod,) = [pod for pod in pods_of(node.objects) if pod.owner == owner]
    return pod


@contextlib.contextmanager
def started(node: Node, owner: str, name: str) -> Iterator[Running]:
    container, command = node.container(pod_of(node, owner), name)
    with container.started(command, node.folder / f"{owner}.log") as running:
        yield running


def until(true: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.2)


def serving(node: Node) -> Object:
    """The coordinator's container, once it is ready as its probes see it."""
    spec = pod_of(node, "fkd-coordinator").container("coordinator")
    for kind in ("startup", "readiness"):
        until(functools.partial(node.probe, spec, kind), f"{kind} probe succeeds")
    return spec


def url(node: Node, path: str) -> str:
    scheme = pod_of(node, "fkd-coordinator").container("coordinator")["startupProbe"]["httpGet"]["scheme"]
    return f"{scheme.lower()}://{ADDRESS}:50053{path}"


def test_a_federation_with_certificates(mtls: Node, authority: Authority) -> None:
    with started(mtls, "fkd-coordinator", "coordinator") as hub:
        spec = serving(mtls)
        assert mtls.probe(spec, "liveness")
        container, _ = mtls.container(pod_of(mtls, "fkd-coordinator"), "coordinator")
        inside = replace(container, root=mtls.folder / "exec")
        assert inside.run(["python", "/opt/fkd/healthcheck.py"]).returncode == 0, "over HTTPS, too"
        assert mtls.ask(url(mtls, "/metrics")).status == 401
        answer = mtls.ask(url(mtls, "/metrics"), Authorization=f"Bearer {TOKEN.decode()}")
        assert answer.status == 200 and "fkd_run_info" in answer.body

        seen = as_holder(mtls, "fkd-operator-tls", "status")
        assert seen.returncode == 0 and "run-1" in seen.stdout, seen.stderr
        refused = as_holder(mtls, "fkd-site-a-tls", "status")
        assert refused.returncode == 4, refused.stderr

        with started(mtls, "fkd-site-a", "client"):
            hub.said('"client": "site-a"')

        renewed = authority.secret_for(named(mtls.objects, "Certificate", "fkd-coordinator"))
        assert mtls.certificate(50053) != renewed["tls.crt"]
        mtls.replace_secret("fkd-tls", renewed)
        until(
            lambda: mtls.certificate(50053) == renewed["tls.crt"], "new connections get the new certificate"
        )

        mtls.replace_secret("fkd-http", {"token": b"the-next-token-of-prometheus"})
        until(
            lambda: (
                mtls.ask(url(mtls, "/metrics"), Authorization="Bearer the-next-token-of-prometheus").status
                == 200
                and mtls.ask(url(mtls, "/metrics"), Authorization=f"Bearer {TOKEN.decode()}").status == 401
            ),
            "the new token counts, and the old one no more",
        )

        serial = x509.load_pem_x509_certificate(mtls.secrets["fkd-operator-tls"]["tls.crt"]).serial_number
        mtls.replace_secret("fkd-tls", {**renewed, "revoked": f"{serial:x}\n".encode()})
        revoked = as_holder(mtls, "fkd-operator-tls", "status")
        assert revoked.returncode == 4 and "revoked" in revoked.stderr, revoked.stderr
        hub.signal(signal.SIGTERM)
        assert hub.wait(20) == 0


def as_holder(node: Node, secret: str, verb: str) -> subprocess.CompletedProcess[str]:
    """Ask the coordinator something with the certificate in a Secret, by the name of its Service."""
    site = pod_of(node, "fkd-site-b")
    for volume in site.spec["volumes"]:
        if volume["name"] == "tls":
            volume["secret"]["secretName"] = secret
    container, _ = node.container(site, "client")
    return container.run(
        ["fkd-server", verb, "--tls", "/etc/fkd/tls", "--server", "fkd-coordinator:50051"], timeout=60
    )


@pytest.mark.parametrize(
    ("variables", "code"),
    [({"FKD_THREADS": "many"}, 2), ({"FKD_SERVER": f"{ADDRESS}:1", "FKD_PATIENCE_S": "1"}, 5)],
)
def test_a_job_sees_how_its_client_ended(mtls: Node, variables: dict[str, str], code: int) -> None:
    shutil.copytree(make_images(mtls.folder), mtls.claim("fkd-site-a-images"), dirs_exist_ok=True)
    container, command = mtls.container(pod_of(mtls, "fkd-site-a"), "client")
    changed = replace(container, environment={**container.environment, **variables})
    done = changed.run(command)
    assert done.returncode == code, done.stderr


def test_a_client_that_is_told_to_stop_does_not_look_like_a_run_that_is_over(mtls: Node) -> None:
    shutil.copytree(make_images(mtls.folder), mtls.claim("fkd-site-a-images"), dirs_exist_ok=True)
    container, command = mtls.container(pod_of(mtls, "fkd-site-a"), "client")
    nobody_there = replace(container, environment={**container.environment, "FKD_SERVER": f"{ADDRESS}:1"})
    with nobody_there.started(command, mtls.folder / "log") as site:
        site.said("coordinator_unreachable")
        site.signal(signal.SIGTERM)
        assert site.wait(30) == 143
    assert "stopped on request" in (mtls.folder / "log").read_text()


def make_images(folder: Path) -> Path:
    """A few digits, as a shard."""
    from fkd_shards.create import CreateRequest, create
    from fkd_shards.partitions import Partition

    out = Path(tempfile.mkdtemp(dir=folder)) / "digits"
    create(CreateRequest("digits", 2, Partition.parse("iid"), 0, out, anchors=20, limit=180))
    return out / "shard0"


@pytest.mark.timeout(400)
def test_the_local_overlay_from_nothing_to_a_model(start_node: Callable[..., Node]) -> None:
    objects = render("overlays/local") + [
        found for found in render("demo-data") if found["kind"] in {"Job", "PersistentVolumeClaim"}
    ]
    node = start_node(objects)
    once(node, "fkd-demo-data", "create")
    once(node, "fkd-coordinator", "prepare")
    made = node.claim("state-fkd-coordinator-0") / "prepared" / "anchors.safetensors"
    before = made.stat().st_mtime_ns
    once(node, "fkd-coordinator", "prepare")
    assert made.stat().st_mtime_ns == before, "a pod that starts again prepares nothing"

    sites = [pod.owner for pod in pods_of(objects) if pod.owner.startswith("fkd-site")]
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(started(node, "fkd-coordinator", "coordinator"))
        serving(node)
        assert node.ask(url(node, "/api/status")).status == 401
        answer = node.ask(url(node, "/api/status"), Authorization=f"Bearer {TOKEN.decode()}")
        assert '"run_id":"demo"' in answer.body.replace(" ", ""), (
            "what `port-forward` leads to, with the token"
        )
        container, _ = node.container(pod_of(node, "fkd-coordinator"), "coordinator")
        seen = replace(container, root=node.folder / "exec").run(["fkd-server", "status"])
        assert seen.returncode == 0 and "demo" in seen.stdout, seen.stderr
        jobs = {owner: stack.enter_context(started(node, owner, "client")) for owner in sites}
        peaks = peaks_until_all_have_ended({"fkd-coordinator": hub, **jobs})
        for owner, job in jobs.items():
            assert job.wait(0) == 0, (node.folder / f"{owner}.log").read_text()
        hub.said('"event": "saved"')
        assert node.ask(url(node, "/readyz")).status == 200, "with `serve: true` it stays to be looked at"
        hub.signal(signal.SIGTERM)
        assert hub.wait(30) == 0
    summary = node.claim("state-fkd-coordinator-0") / "run/demo/summary.json"
    as_it_ended = summary.read_bytes()
    with started(node, "fkd-coordinator", "coordinator") as again:
        serving(
            node
        )  # a pod that is moved when the run is over shows it, rather than failing or beginning another
        answer = node.ask(url(node, "/api/status"), Authorization=f"Bearer {TOKEN.decode()}")
        assert '"state":"completed"' in answer.body.replace(" ", "")
        again.signal(signal.SIGTERM)
        assert again.wait(30) == 0
    assert summary.read_bytes() == as_it_ended
    for owner, peak in peaks.items():
        pod = pod_of(node, owner)
        asked = pod.spec["containers"][0]["resources"]["requests"]["memory"]
        print(f"{owner}: {peak:.0f} MiB at its peak, asks for {asked}")
        assert 0 < peak < mib(asked)
    left = node.claim("state-fkd-coordinator-0") / "run" / "demo"
    assert (left / "model.safetensors").stat().st_size > 0
    for number in range(3):
        (model,) = node.claim(f"fkd-site-state-{number}").glob("run/*/client-*/model.safetensors")
        assert model.parent.name == f"client-site-{number}"


def peaks_until_all_have_ended(running: dict[str, Running]) -> dict[str, float]:
    """The most memory each held, in MiB, seen while all but the first were at work."""
    _, *jobs = running
    peaks = dict.fromkeys(running, 0.0)

    def ended() -> bool:
        for owner, one in running.items():
            peaks[owner] = max(peaks[owner], one.peak_mib())
        return all(running[job].process.poll() is not None for job in jobs)

    until(ended, "every client ends")
    return peaks


def mib(quantity: str) -> float:
    """A quantity of memory as Kubernetes writes it."""
    return float(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def once(node: Node, owner: str, name: str) -> None:
    container, command = node.container(pod_of(node, owner), name)
    done = container.run(command)
    assert done.returncode == 0, done.stderr
