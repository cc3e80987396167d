"""`fkd-shards` from flags to folders and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fkd_shards.cli import main
from fkd_shards.shard import read_shard

from .published import distinct_images, labels_of, png, write_class_folder, write_encoded, write_npz


def create(
    source: Path | str, out: Path, *more: str, partition: str = "iid", clients: int = 3, seed: int = 0
) -> int:
    flags = ["--clients", str(clients), "--partition", partition, "--seed", str(seed), "--out", str(out)]
    return main(["create", "--source", str(source), *flags, *(more or ("--anchors", "5"))])


def manifest_of(out: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((out / "manifest.json").read_text())
    return content


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("fkd-shards: error: ")
    return lines[0]


def rows(folder: Path) -> list[bytes]:
    return [image.tobytes() for image in read_shard(folder, verify=True).images]


def test_every_image_is_in_exactly_one_folder_with_its_label(tmp_path: Path) -> None:
    out, source = tmp_path / "out", write_npz(tmp_path / "a.npz")
    assert create(source, out, "--anchors", "6", "--public", "4") == 0
    names = ["anchors", "public", "shard0", "shard1", "shard2", "test"]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "manifest.json"])
    original = [image.tobytes() for image in distinct_images(60)]
    assert sorted(row for name in names for row in rows(out / name)) == sorted(original)
    label = dict(zip(original, labels_of(60, 3).tolist(), strict=True))
    for name in set(names) - {"anchors"}:
        labels = read_shard(out / name).labels
        assert labels is not None
        assert labels.tolist() == [label[row] for row in rows(out / name)]
    assert not (out / "anchors" / "labels.npy").exists()


def test_few_shots_and_wrong_labels_are_as_the_flags_say(tmp_path: Path) -> None:
    out, source = tmp_path / "out", write_npz(tmp_path / "a.npz", 240)
    flags = ["--few-shot", "8", "--flipped-clients", "0.34", "--label-noise", "0.25", "--anchors", "5"]
    assert create(source, out, *flags) == 0
    manifest = manifest_of(out)
    assert (manifest["few_shot"], manifest["label_noise"]) == (8, 0.25)
    label = dict(zip((i.tobytes() for i in distinct_images(240)), labels_of(240, 3).tolist(), strict=True))
    for name in ("shard0", "shard1", "shard2"):
        true = np.array([label[row] for row in rows(out / name)])
        assert np.bincount(true).tolist() == [8, 8, 8]
        expected = 2 - true if name in manifest["flipped"] else true  # type: ignore[operator]
        assert (read_shard(out / name).labels != expected).sum() == 6
    assert len(manifest["flipped"]) == 1  # type: ignore[arg-type]


def test_manifest_counts_what_the_folders_hold(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert create(write_npz(tmp_path / "a.npz"), out) == 0
    manifest = manifest_of(out)
    parts = manifest["parts"]
    assert isinstance(parts, dict)
    assert manifest["classes"] == ["0", "1", "2"]
    assert manifest["partition"] == "iid"
    assert parts["test"]["class_counts"] == [4, 4, 4]
    assert parts["anchors"]["class_counts"] is None
    assert sum(part["num_samples"] for part in parts.values()) == 60
    for name, part in parts.items():
        assert read_shard(out / name, verify=True).sha256 == part["sha256"]


def test_second_run_writes_the_same_bytes_and_another_seed_another_partition(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "a.npz", 120)
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        assert create(source, tmp_path / name, partition="dirichlet:1", seed=seed) == 0
    one, two, three = (
        {p.relative_to(d): p.read_bytes() for p in d.rglob("*.*")}
        for d in map(tmp_path.joinpath, ("one", "two", "three"))
    )
    assert one == two
    hashes = {manifest_of(tmp_path / name)["partition_sha256"] for name in ("one", "three")}
    assert len(hashes) == 2
    assert one.keys() == three.keys()


def test_published_test_part_becomes_the_test_folder_and_anchors_never_come_from_it(tmp_path: Path) -> None:
    images = distinct_images(50)
    np.savez(
        tmp_path / "a.npz",
        x_train=images[:40],
        y_train=labels_of(40, 2),
        x_test=images[40:],
        y_test=labels_of(10, 2),
    )
    assert create(tmp_path / "a.npz", tmp_path / "out", "--anchors", "20") == 0
    published = {image.tobytes() for image in images[40:]}
    assert set(rows(tmp_path / "out" / "test")) == published
    assert not set(rows(tmp_path / "out" / "anchors")) & published


def test_sites_stay_together(tmp_path: Path) -> None:
    files = [png(image) for image in distinct_images(40)]
    source = write_encoded(tmp_path / "a.npz", files, [0, 1] * 20, [index // 5 for index in range(40)])
    assert create(source, tmp_path / "out", "--anchors", "2", partition="sites") == 0
    parts = manifest_of(tmp_path / "out")["parts"]
    assert isinstance(parts, dict)
    sites = [site for name in ("shard0", "shard1", "shard2") for site in parts[name]["sites"]]
    assert sorted(sites) == [str(site) for site in range(8)]


def test_limit_takes_a_random_subset_of_sorted_data(tmp_path: Path) -> None:
    assert (
        create(write_npz(tmp_path / "a.npz", 300), tmp_path / "out", "--limit", "60", "--anchors", "0") == 0
    )
    parts = manifest_of(tmp_path / "out")["parts"]
    assert isinstance(parts, dict)
    assert sum(part["num_samples"] for part in parts.values()) == 60
    assert min(parts["test"]["class_counts"]) > 0
    assert "anchors" not in parts


def test_image_size_resizes_every_source(tmp_path: Path) -> None:
    assert create(write_npz(tmp_path / "a.npz"), tmp_path / "out", "--image-size", "8", "--anchors", "5") == 0
    assert read_shard(tmp_path / "out" / "shard0").images.shape[1:] == (8, 8, 3)


def test_digits_make_a_demo(tmp_path: Path) -> None:
    assert create("digits", tmp_path / "out", "--anchors", "100", partition="dirichlet:0.5") == 0
    assert read_shard(tmp_path / "out" / "test").num_samples == 359


def test_json_is_the_manifest_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert create(write_npz(tmp_path / "a.npz"), tmp_path / "out", "--anchors", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out) == manifest_of(tmp_path / "out")


def test_table_shows_classes_by_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_class_folder(tmp_path / "photos", {"[red]cat": 20, "dog": 20})
    assert create(tmp_path / "photos", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "[red]cat" in printed
    assert "shard2" in printed
    assert f"partition sha256 {manifest_of(tmp_path / 'out')['partition_sha256']}" in printed


def test_inspect_prints_data_sets_shards_and_anchors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert create(write_npz(tmp_path / "a.npz"), tmp_path / "out") == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--verify"]) == 0
    assert "shard1" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out" / "anchors")]) == 0
    assert "(unlabelled)" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out" / "test"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class_counts"] == [4, 4, 4]


def test_inspect_finds_a_folder_that_was_swapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert create(write_npz(tmp_path / "a.npz"), tmp_path / "out") == 0
    (tmp_path / "out" / "shard0").rename(tmp_path / "aside")
    (tmp_path / "out" / "shard1").rename(tmp_path / "out" / "shard0")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 3
    assert "not the part that manifest.json describes" in error_of(capsys)


def test_full_output_folder_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_npz(tmp_path / "a.npz"), tmp_path / "out"
    assert create(source, out, seed=1) == 0
    first = manifest_of(out)
    capsys.readouterr()
    assert create(source, out, seed=2) == 2
    assert "is not empty" in error_of(capsys)
    assert manifest_of(out) == first
    assert create(source, out, "--force", "--anchors", "5", seed=2) == 0
    assert manifest_of(out)["seed"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "out"]


def test_force_never_deletes_what_it_did_not_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, home = write_npz(tmp_path / "a.npz"), tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    assert create(source, home, "--force", "--anchors", "5") == 2
    assert "has thesis.tex" in error_of(capsys)
    assert (home / "thesis.tex").exists()


def test_empty_output_folder_is_used_and_failure_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert create(write_npz(tmp_path / "a.npz"), out, "--anchors", "999") == 3
    assert list(out.iterdir()) == []
    assert create(tmp_path / "a.npz", out) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "out"]
    umask = os.umask(0)
    os.umask(umask)
    assert out.stat().st_mode & 0o777 == 0o777 & ~umask


@pytest.mark.scenario(28)
def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """Scenario 28: a file may not grow past 2,000 bytes, as on a full disk."""
    source = write_npz(tmp_path / "a.npz", 300)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
        "from fkd_shards.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    flags = [
        "--clients",
        "2",
        "--partition",
        "iid",
        "--seed",
        "0",
        "--anchors",
        "5",
        "--out",
        str(tmp_path / "out"),
    ]
    command = [sys.executable, "-c", code, "create", "--source", str(source), *flags]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 3
    assert "could not be written" in finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.scenario(40)
def test_bad_images_up_to_the_share_are_skipped_and_above_it_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenario 40."""
    source = write_class_folder(tmp_path / "photos", {"cat": 20, "dog": 19})
    (source / "dog" / "zero.png").write_bytes(b"")
    assert create(source, tmp_path / "strict") == 3
    assert "1 of 40 images cannot be used" in error_of(capsys)
    assert not (tmp_path / "strict").exists()
    assert create(source, tmp_path / "out", "--max-bad", "0.05", "--anchors", "5") == 0
    assert "skipped dog/zero.png: empty file" in capsys.readouterr().err
    manifest = manifest_of(tmp_path / "out")
    assert manifest["bad"] == [{"name": "dog/zero.png", "reason": "empty file"}]
    assert manifest["num_bad"] == 1


@pytest.mark.scenario(39)
def test_bad_labels_are_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scenario 39."""
    np.savez(tmp_path / "a.npz", x=distinct_images(3), y=np.array([0, np.nan, 1]))
    assert create(tmp_path / "a.npz", tmp_path / "out") == 3
    assert "row 1: nan" in error_of(capsys)


@pytest.mark.parametrize(
    "flags",
    [
        ["create", "--nonsense"],
        ["create", "--source", "digits"],
        ["frobnicate"],
        [],
        ["create", "--source", "digits", "--clients", "x", "--partition", "iid", "--seed", "0", "--out", "o"],
    ],
)
def test_wrong_flags_are_exit_code_2(flags: list[str]) -> None:
    assert main(flags) == 2


@pytest.mark.parametrize(
    "more",
    [
        ("--clients", "0"),
        ("--seed", "-1"),
        ("--anchors", "-1"),
        ("--test-fraction", "1"),
        ("--test-fraction", "nan"),
        ("--max-bad", "2"),
        ("--limit", "0"),
        ("--image-size", "100000"),
        ("--partition", "dirichlet:0"),
        ("--source", "imagenet:x"),
    ],
)
def test_values_out_of_range_are_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert create("digits", tmp_path / "out", *more) == 2
    error_of(capsys)


def test_missing_source_and_missing_folder_are_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert create(tmp_path / "none", tmp_path / "out") == 3
    assert "no data at" in error_of(capsys)
    assert main(["inspect", str(tmp_path)]) == 3
    assert "neither manifest.json nor shard.json" in error_of(capsys)
