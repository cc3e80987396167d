"""The one file that travels: what it holds, and what is refused as such."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from fkd_common.artifacts import sha256_hex
from fkd_common.errors import DataError, UsageError
from fkd_common.exported_file import (
    EXPORT_KEY,
    Candidate,
    ModelFiles,
    decode_exported,
    encode_exported,
    read_whole,
)
from fkd_common.extractor_artifact import SPEC_KEY, join_safetensors, split_safetensors
from fkd_common.model_file import HEADER_KEY, decode_model
from fkd_common.tensors import decode

from .finished_run import IMAGE_SIZE, FinishedRun


@pytest.fixture(scope="module")
def files(run: FinishedRun) -> ModelFiles:
    return ModelFiles.of("run-1", run.model, run.extractor_file.read_bytes(), Candidate.PUBLISHED)


@pytest.fixture(scope="module")
def blob(files: ModelFiles) -> bytes:
    return encode_exported(files)


def rewritten(blob: bytes, **metadata: str) -> bytes:
    """The same tensors under other metadata; keys are given with underscores for dots."""
    header, body = split_safetensors(blob, name="test")
    changed = header["__metadata__"] | {key.replace("_", ".", 1): text for key, text in metadata.items()}
    return join_safetensors(header, body, changed)


def test_it_comes_apart_into_what_it_was_made_of(files: ModelFiles, blob: bytes) -> None:
    again = decode_exported(blob)
    assert again.header == files.header
    model, of = decode(again.model), decode(files.model)
    assert {name: array.tobytes() for name, array in model.items()} == {
        name: array.tobytes() for name, array in of.items()
    }
    extractor, original = decode(again.extractor), decode(files.extractor)
    assert {name: (array.dtype, array.tobytes()) for name, array in extractor.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in original.items()
    }
    assert encode_exported(again) == blob


def test_it_says_what_goes_in_what_comes_out_and_where_it_comes_from(run: FinishedRun, blob: bytes) -> None:
    header, _ = split_safetensors(blob, name="test")
    assert set(header["__metadata__"]) == {EXPORT_KEY, HEADER_KEY, SPEC_KEY}
    told = json.loads(header["__metadata__"][EXPORT_KEY])
    assert told["input"]["shape"] == ["N", 3, IMAGE_SIZE, IMAGE_SIZE]
    assert told["input"]["dtype"] == "uint8"
    assert told["classes"] == [str(digit) for digit in range(10)]
    assert told["run_id"] == "run-1"
    assert told["model_sha256"] == sha256_hex(run.model)
    assert told["extractor_sha256"] == sha256_hex(run.extractor_file.read_bytes())
    assert told["config_sha256"] == decode_model(run.model).header.config.sha256()


def test_other_programs_read_every_tensor(blob: bytes, tmp_path: Path) -> None:
    path = tmp_path / "exported.safetensors"
    path.write_bytes(blob)
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        assert {"extractor.conv1.weight", "student.output.weight", "standardiser.mean"} <= set(names)
        assert all(file.get_tensor(name).numel() for name in names)


@pytest.mark.parametrize("candidate", ["student", "anchors", "moments"])
def test_a_candidate_brings_its_own_correction_only(run: FinishedRun, candidate: str) -> None:
    files = ModelFiles.of("r", run.model, run.extractor_file.read_bytes(), Candidate(candidate))
    parts = decode_model(files.model)
    assert files.header.candidate == parts.header.published == candidate
    assert (parts.anchor_correction is not None) == (candidate == "anchors")
    assert (parts.moment_solution is not None) == (candidate == "moments")


def test_a_candidate_that_the_model_lacks_is_refused(run: FinishedRun) -> None:
    extractor = run.extractor_file.read_bytes()
    bare = ModelFiles.of("r", run.model, extractor, Candidate.STUDENT).model
    with pytest.raises(
        UsageError, match="--candidate moments: this model has no such candidate, only student"
    ):
        ModelFiles.of("r", bare, extractor, Candidate.MOMENTS)


def test_another_runs_extractor_is_refused(run: FinishedRun) -> None:
    with pytest.raises(DataError, match="the model needs the extractor with sha256"):
        ModelFiles.of("r", run.model, b"another", Candidate.PUBLISHED)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"fkd_export": "{}"}, "not a model exported by this release: fkd_version"),
        ({"fkd_export": "no JSON"}, "not a model exported by this release"),
        ({"fkd_extractor": "{}"}, "damaged: an extractor description needs"),
        ({"fkd_model": "{}"}, "damaged: not a published model"),
    ],
)
def test_metadata_that_is_none_is_refused(blob: bytes, change: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode_exported(rewritten(blob, **change))


def test_a_later_format_is_refused_by_name(files: ModelFiles, blob: bytes) -> None:
    later = json.loads(files.header.model_dump_json()) | {"format": 2}
    with pytest.raises(DataError, match="format: Input should be 1"):
        decode_exported(rewritten(blob, fkd_export=json.dumps(later)))


def test_a_description_of_another_model_is_refused(files: ModelFiles, blob: bytes) -> None:
    other = files.header.model_copy(update={"classes": ("a", *files.header.classes[1:])})
    with pytest.raises(DataError, match="not what its description says"):
        decode_exported(rewritten(blob, fkd_export=other.model_dump_json()))


def test_overlapping_tensors_do_not_become_many_times_their_size(blob: bytes) -> None:
    """Fifty names for the same bytes would be copied fifty times."""
    header, body = split_safetensors(blob, name="test")
    whole = {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}
    copies = {f"extractor.{number}": whole for number in range(50)}
    with pytest.raises(DataError, match="overlap"):
        decode_exported(join_safetensors(header | copies, body, header["__metadata__"]))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="no model or extractor has more than"):
        read_whole(tmp_path / "sparse")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a file expected, got a folder"):
        read_whole(tmp_path)
    with pytest.raises(DataError, match="a file expected, got none"):
        read_whole(tmp_path / "absent")
