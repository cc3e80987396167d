"""The .proto files: generated code is what is checked in, everything is commented, nothing personal fits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from fkd_common.pb import coordinator_pb2, types_pb2

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
FILES = tuple(f"fkd/v1/{name}.proto" for name in ("types", "coordinator", "admin", "enrolment"))


def without_versions(text: str) -> str:
    """Generated code without the lines that name the compiler that made it."""
    text = re.sub(r"# Protobuf Python Version: .*", "", text)
    return re.sub(r"_runtime_version\.ValidateProtobufRuntimeVersion\(.*?\)", "", text, flags=re.DOTALL)


def test_the_generated_code_is_what_is_checked_in(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(["sh", str(PROTO / "generate.sh"), str(tmp_path)], check=True, env=environment)
    checked_in = ROOT / "fkd_common/pb"
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(p.name for p in checked_in.glob("*_pb2.py*") if p.suffix in (".py", ".pyi"))
    for name in made:
        fresh, kept = (tmp_path / name).read_text(), (checked_in / name).read_text()
        assert without_versions(fresh) == without_versions(kept), f"run proto/generate.sh: {name} is outdated"


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorSet:
    out = tmp_path_factory.mktemp("proto") / "set.bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTO), "--include_source_info"]
    subprocess.run([*command, f"--descriptor_set_out={out}", *FILES], check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def test_every_message_field_and_method_is_commented(described: descriptor_pb2.FileDescriptorSet) -> None:
    silent = []
    for file in described.file:
        comments = {
            tuple(place.path): (place.leading_comments or place.trailing_comments).strip()
            for place in file.source_code_info.location
        }
        named = {(4, i): message.name for i, message in enumerate(file.message_type)}
        for i, message in enumerate(file.message_type):
            named |= {(4, i, 2, j): f"{message.name}.{f.name}" for j, f in enumerate(message.field)}
        for i, service in enumerate(file.service):
            named |= {(6, i, 2, j): method.name for j, method in enumerate(service.method)}
        named |= {(5, i): enum.name for i, enum in enumerate(file.enum_type)}
        silent += [name for path, name in named.items() if not comments.get(path)]
    assert silent == []


def test_bytes_travel_only_where_the_protocol_says_what_they_are() -> None:
    """Invariant I6: digests, sessions, artifacts going down, and validated uploads; nothing else is opaque."""
    opaque = {
        f"{message.name}.{field.name}"
        for file in (types_pb2, coordinator_pb2)
        for message in file.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if field.type == field.TYPE_BYTES and field.name not in ("session", "sha256")
    }
    assert opaque == {"Upload.inline", "PutChunkRequest.data", "GetChunkResponse.data"}
