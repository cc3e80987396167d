"""Payloads of another kind, and payloads that lie about themselves: refused by what they are, never interpreted."""

from __future__ import annotations

import hashlib
import io
import pickle
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fkd_common.errors import CorruptTransferError, FkdError, InvalidUploadError
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_CHUNK_BYTES
from fkd_common.tensors import encode
from fkd_server.run_state import RunState

from .tiny import MOMENTS, RESIDUALS, STUDENT, Site, TinyRun, filled, inline

ROOT = Path(__file__).parents[2]


def torch_zip() -> bytes:
    """The layout of `torch.save`: a zip archive around a pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": [1.0]}, protocol=2))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def npy_object() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], object), allow_pickle=True)
    return stream.getvalue()


HOSTILE = {
    "pickle": pickle.dumps({"w": [1.0]}),
    "pickle protocol 0": b"cos\nsystem\n(S'touch /tmp/never'\ntR.",
    "torch.save": torch_zip(),
    "torch legacy": pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001, protocol=2),
    "yaml tag": b"!!python/object/apply:os.system ['touch /tmp/never']\n",
    "npy of objects": npy_object(),
    "joblib": b"\x80\x04\x95" + bytes(40),
}


@pytest.mark.scenario(19)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_payload_that_is_no_safetensors_is_refused(
    run: TinyRun, sites: tuple[Site, Site], kind: str
) -> None:
    """Scenario 19."""
    with pytest.raises(InvalidUploadError) as refused:
        sites[0].call(
            "SubmitStudent",
            key=sites[0].key(1, STUDENT),
            upload=inline(HOSTILE[kind]),
            num_samples=9,
            reliability=1.0,
        )
    assert "safetensors" in str(refused.value)
    assert list(run.uploads.iterdir()) == []


@pytest.mark.scenario(19)
def test_no_unpickler_is_called_whatever_is_uploaded(tmp_path: Path, seen: Callable[[object], None]) -> None:
    """Scenario 19: with every unpickler of the process booby-trapped, hostile and valid uploads are all answered."""
    (tmp_path / "payloads").mkdir()
    for name, payload in HOSTILE.items():
        (tmp_path / "payloads" / name.replace(" ", "_")).write_bytes(payload)
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from tests.server.tiny import STUDENT, filled, inline, tiny_run
        from fkd_common.errors import InvalidUploadError

        import _pickle, marshal, pickle, yaml

        def sprung(*args, **kwargs):
            print("an unpickler was called", flush=True)
            raise SystemExit(99)

        class Sprung:
            def __init__(self, *args, **kwargs):
                sprung()

        for module in (pickle, _pickle):
            module.load = module.loads = sprung
            module.Unpickler = Sprung
        pickle._Unpickler = Sprung
        yaml.load = yaml.unsafe_load = yaml.full_load = sprung
        sys.addaudithook(lambda event, arguments: sprung() if event == "pickle.find_class" else None)

        run = tiny_run(Path(sys.argv[1]) / "run")
        a, b = run.site("a"), run.site("b")
        a.poll(), b.poll()
        refused = 0
        for path in sorted((Path(sys.argv[1]) / "payloads").iterdir()):
            try:
                a.call("SubmitStudent", key=a.key(1, STUDENT), upload=inline(path.read_bytes()),
                       num_samples=9, reliability=1.0)
            except InvalidUploadError:
                refused += 1
            a.poll()
        b.submit_student(1, filled(run.method, 1.0))
        run.method.model()
        print(refused, "refused;", run.coordinator.state)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{len(HOSTILE)} refused;"), done.stdout
    seen("unpicklers trapped: none called")


def lies(blob: bytes) -> dict[str, tuple[types.Upload, type[FkdError]]]:
    """Uploads of a valid blob that say something untrue of it, and what each is refused with."""
    digest = hashlib.sha256(blob).digest()
    flipped = bytearray(blob)
    flipped[-1] ^= 1
    return {
        "flipped byte": (
            types.Upload(sha256=digest, size=len(blob), inline=bytes(flipped)),
            CorruptTransferError,
        ),
        "digest of another": (
            types.Upload(sha256=bytes(32), size=len(blob), inline=blob),
            CorruptTransferError,
        ),
        "declared smaller": (
            types.Upload(sha256=digest, size=len(blob) - 1, inline=blob),
            InvalidUploadError,
        ),
        "declared larger": (types.Upload(sha256=digest, size=len(blob) + 1, inline=blob), InvalidUploadError),
        "trailing data": (inline(blob + b"\0"), InvalidUploadError),
        "cut short": (inline(blob[:-1]), InvalidUploadError),
    }


@pytest.mark.scenario(21)
@pytest.mark.parametrize("lie", lies(bytes(100)))
def test_an_upload_that_lies_about_itself_is_refused(
    run: TinyRun, sites: tuple[Site, Site], lie: str, seen: Callable[[object], None]
) -> None:
    """Scenario 21: damage on the way may be repaired by sending again; a wrong description may not."""
    a, b = sites
    blob = encode(filled(run.method, 1.0))
    upload, kind = lies(blob)[lie]
    with pytest.raises(kind) as refused:
        a.call("SubmitStudent", key=a.key(1, STUDENT), upload=upload, num_samples=9, reliability=1.0)
    assert type(refused.value) is kind
    assert list(run.uploads.iterdir()) == []
    if kind is CorruptTransferError:
        assert not a.submit_student(1, filled(run.method, 1.0)).duplicate
        b.submit_student(1, filled(run.method, 1.0))
        assert run.coordinator.state is RunState.COMPLETED
    seen("DATA_LOSS, sent again" if kind is CorruptTransferError else "INVALID_ARGUMENT")


@pytest.mark.scenario(20)
@pytest.mark.parametrize("phase", [STUDENT, RESIDUALS, MOMENTS])
def test_an_upload_declared_as_huge_is_refused_before_a_byte_of_it_is_held(
    run: TinyRun, sites: tuple[Site, Site], phase: int
) -> None:
    """Scenario 20."""
    with pytest.raises(FkdError):
        sites[0].call(
            "PutChunk", key=sites[0].key(1, phase), sha256=bytes(32), size=2**63, data=bytes(MAX_CHUNK_BYTES)
        )
    assert list((run.blobs.parent / "spool").iterdir()) == []
