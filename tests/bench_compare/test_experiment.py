"""An experiment's file: what it spans, what decides a cell, and a sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_bench.compare.catalogue import ALL_METHODS, PRESETS
from fkd_bench.compare.checks import check_cells
from fkd_bench.compare.experiment import Experiment
from fkd_bench.compare.ready import find_experiment, ready_experiments
from fkd_bench.compare.span import cells_of, reported
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, FkdError, UsageError

from .conftest import SMALL, small_cells

DIGITS = "title: t\ndata: {digits: {source: digits, extractor: pretrain}}\n"


def parsed(content: str) -> Experiment:
    return Experiment.parse(content, "x", "x.yaml")


def test_every_method_meets_every_place_and_seed_once_seed_by_seed() -> None:
    cells = cells_of(parsed(SMALL), {})
    assert [str(cell) for cell in cells[:4]] == [
        "FedAvg, dirichlet:0.1, seed 0",
        "FedProx, dirichlet:0.1, seed 0",
        "FKD-RTM, dirichlet:0.1, seed 0",
        "FedAvg, iid, seed 0",
    ]
    assert len({cell.id for cell in cells}) == len(cells) == 12
    assert len({cell.division.id for cell in cells}) == 4


def test_a_cell_has_what_its_experiment_data_and_method_say() -> None:
    cell = cells_of(parsed(SMALL), {})[1]
    assert (cell.division.clients, cell.division.public, cell.division.partition) == (3, 300, "dirichlet:0.1")
    config = cell.config
    assert (config.rounds, config.local_steps, config.options, config.min_clients) == (2, 5, {"mu": 0.1}, 3)


def test_values_on_axes_are_spelled_as_the_configuration_holds_them() -> None:
    content = DIGITS + "axes: {eps: [1e-6, 0.001], clients: [4]}\nmethods: [fkd-rtm]\nseeds: [0]\n"
    assert [cell.varied for cell in cells_of(parsed(content), {})] == [
        {"eps": 1e-06, "clients": 4},
        {"eps": 0.001, "clients": 4},
    ]


def test_several_data_sets_are_an_axis() -> None:
    content = "title: t\nmethods: [fkd-rtm]\nseeds: [3]\ncolumns: data\ndata:\n"
    content += (
        "  a: {source: digits, extractor: pretrain}\n  b: {source: digits, extractor: pretrain, limit: 50}\n"
    )
    cells = cells_of(parsed(content), {})
    assert [(cell.dataset, cell.varied, cell.division.limit) for cell in cells] == [
        ("a", {"data": "a"}, None),
        ("b", {"data": "b"}, 50),
    ]


def test_an_id_follows_from_what_decides_the_outcome_and_from_nothing_else() -> None:
    base = small_cells("[fedavg]")[0]
    assert small_cells("[{method: fedavg, label: Another name}]")[0].id == base.id
    assert small_cells("[fedavg]", seeds=[1])[0].id != base.id
    assert small_cells("[{method: fedavg, config: {lr: 0.002}}]")[0].id != base.id
    assert small_cells("[{method: fedprox, options: {mu: 1}}]")[0].id != small_cells("[fedprox]")[0].id


def test_codecs_decide_a_cell_of_another_method_where_they_are_given() -> None:
    base = small_cells("[fedavg]")[0]
    assert small_cells("[{method: fedavg, config: {update_codec: fp32, model_codec: fp32}}]")[0].id == base.id
    ids = {
        small_cells(f"[{{method: fedavg, config: {{update_codec: {c}}}}}]")[0].id for c in ("int4", "int8")
    }
    assert len(ids | {base.id}) == 3


def test_a_codec_for_a_method_without_networks_is_refused_and_one_for_all_passes_it_by() -> None:
    with pytest.raises(
        UsageError, match=r"seed 0: fedmd with model head has no network .* update_codec = int4$"
    ):
        check_cells(small_cells("[{method: fedmd, config: {update_codec: int4}}]"), "x.yaml")
    on_an_axis = cells_of(parsed(DIGITS + "methods: [fed3r]\naxes: {model_codec: [fp32, int8]}\n"), {})
    with pytest.raises(UsageError, match=r"int8, seed 0: fed3r .* has no network .* model_codec = int8$"):
        check_cells([cell for cell in on_an_axis if cell.varied["model_codec"] == "int8"], "x.yaml")
    content = DIGITS + "methods: [fedavg, fedmd]\nseeds: [0]\ncommon: {update_codec: int4}\n"
    cells = cells_of(parsed(content), {})
    assert [cell.config.update_codec for cell in cells] == ["int4", "fp32"]


def test_data_are_known_by_what_they_hold_wherever_they_lie(tmp_path: Path) -> None:
    content = "title: t\nmethods: [fkd-rtm]\nseeds: [0]\ndata: {a: {source: 'npz:${FKD_DATA}/a.npz'}}\n"
    ids = {}
    for folder, held in (("here", b"1"), ("there", b"1"), ("changed", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.npz").write_bytes(held)
        (cell,) = cells_of(parsed(content), {"FKD_DATA": str(tmp_path / folder)})
        assert cell.division.data == f"npz:{tmp_path}/{folder}/a.npz"
        ids[folder] = cell.id
    assert ids["here"] == ids["there"] != ids["changed"]


def test_where_data_lie_must_be_said_and_true(tmp_path: Path) -> None:
    experiment = parsed("title: t\nmethods: [fkd-rtm]\ndata: {a: {source: 'npz:${FKD_DATA}/a.npz'}}\n")
    with pytest.raises(UsageError, match=r"\$\{FKD_DATA\}, which is not set: give --data-folder DIR"):
        cells_of(experiment, {})
    with pytest.raises(DataError, match=f"there is nothing at {tmp_path}/a.npz"):
        cells_of(experiment, {"FKD_DATA": str(tmp_path)})


def test_the_report_is_told_labels_axes_and_seeds_in_order() -> None:
    experiment = parsed(SMALL)
    told = reported(experiment, cells_of(experiment, None), "cmd")
    assert told["labels"] == ["FedAvg", "FedProx", "FKD-RTM"]
    assert told["axes"] == {"partition": ["dirichlet:0.1", "iid"]}
    assert (told["columns"], told["seeds"], told["command"]) == ("partition", [0, 1], "cmd")


MISTAKES = {
    "titel: t\n" + DIGITS + "methods: all": "unknown key titel: did you mean title",
    DIGITS + "methods: [fedavgg]": "unknown method fedavgg: did you mean fedavg",
    DIGITS + "methods: []": "methods = .*at least 1 item",
    DIGITS: "methods: expected a list of names or `all`, got None",
    DIGITS + "methods: [{preset: literally}]": "unknown preset literally: did you mean literal",
    DIGITS + "methods: [{method: fedavg, preset: literal}]": "a preset is for fkd-rtm alone",
    DIGITS + "methods: [{methd: fedavg}]": "unknown key methods.0.methd",
    DIGITS
    + "methods: [fedavg]\ncommon: {local_step: 3}": "common: unknown key local_step: did you mean local_steps",
    DIGITS + "methods: [fedavg]\ncommon: {seed: 3}": r"common: seed is not set here: give `seeds: \[...\]`",
    DIGITS
    + "methods: [fedavg]\naxes: {partitions: [iid]}": "axes: unknown key partitions: did you mean partition",
    DIGITS + "methods: [fedavg]\naxes: {lr: []}": "axes: lr has no values",
    DIGITS + "methods: [fedavg]\naxes: {data: [cifar]}": "unknown data set cifar: expected one of digits",
    DIGITS + "methods: [fedavg]\ncolumns: clients": "columns = 'clients' is no axis: the axes are none",
    DIGITS + "methods: [fedavg]\nmetrics: [globl]": "unknown metric globl: did you mean global",
    DIGITS + "methods: [fedavg]\nmetrics: []": "metrics = .*at least 1 item",
    DIGITS + "methods: [fedavg]\nseeds: [0, 1, 0]": "seeds: 0 is there twice",
    DIGITS + "methods: [fedavg]\naxes: {lr: [1, 1]}": "lr: 1 is there twice",
    DIGITS + "methods: [fedavg]\nclients: true": "clients = true: a number expected",
    DIGITS + "methods: [fedavg]\nseeds: [true]": "seeds = true: a number expected",
    "title: t\ndata: {a: {source: digits, limit: true}}\nmethods: [fedavg]": "limit = true: a number expected",
    DIGITS
    + "methods: [{method: fedavg, config: {refine_steps: 3}}]": "fedavg: refine_steps is read by fkd-rtm alone",
    DIGITS
    + "methods: [fedavg]\nseeds: ["
    + ", ".join(map(str, range(10_001)))
    + "]": "10,001 cells .* divide them",
    "a: &a [1]\nb: *a": "an alias .* is not taken",
    "a: " + "[" * 2000: "more than 20 levels",
    DIGITS + "methods: [{config: {lr: 1}}]\naxes: {lr: [1, 2]}": "fkd-rtm sets lr, which is an axis",
    DIGITS + "methods: [fedavg]\npartition: dirichlet": "partition = 'dirichlet': partition dirichlet needs",
    DIGITS + "methods: [fedavg]\nclients: 0": "clients = 0: ",
    DIGITS + "methods: [fedavg]\nmethods: [fedprox]": "methods is there twice",
    DIGITS + "common: {lr: 1, lr: 2}\nmethods: [fedavg]": "lr is there twice",
    "[1, 2]": "expected `key: value` lines, got a list",
    "a: [": "it is no YAML",
}


@pytest.mark.parametrize("content", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_file(content: str) -> None:
    with pytest.raises(UsageError, match=MISTAKES[content]) as raised:
        parsed(content)
    assert str(raised.value).startswith("experiment x.yaml: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("methods: [{config: {lr: -1}}]", "FKD-RTM: lr = -1: input should be greater than 0"),
        ("methods: [{method: fedavg, config: {val_fraction: 0.5}}]", "FedAvg: val_fraction = 0.5"),
        ("methods: [fkd-rtm]\naxes: {clients: [1.5]}", "clients = 1.5: "),
        (
            "methods: [fkd-rtm, {label: same, config: {rounds: 100}}]",
            "are one and the same run: leave one out",
        ),
    ],
)
def test_a_cell_that_cannot_be_is_refused_before_anything_runs(more: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cells_of(parsed(DIGITS + more), {})


NONSENSE = {
    "methods: [{method: fedprox, options: {nu: 1}}]": "FedProx, seed 0: options of fedprox: nu",
    "methods: [{method: fedprox, options: {mu: abc}}]": "FedProx, seed 0: options of fedprox: mu: .*number",
    "methods: [{method: fedprox, options: {mu: true}}]": "mu = true: a number expected",
    "methods: [fkd-rtm]\ncommon: {min_clients: 11}": "min_clients = 11: 10 clients are fewer",
    "methods: [fkd-rtm]\nlimit: 500\nanchors: 20\nclients: 100000": "100000 clients need .* there are 80",
    "methods: [fkd-rtm]\nanchors: 3000": "3000 anchors and 300 public samples leave none",
    "methods: [fkd-rtm]\npartition: sites": "partition sites needs a source with sites",
    "methods: [fkd-rtm]\npartition: classes:11": "more classes per client than the 10 there are",
}


@pytest.mark.parametrize("more", NONSENSE)
def test_what_cannot_be_run_is_refused_before_anything_runs(more: str) -> None:
    experiment = parsed(DIGITS.replace("pretrain", "pretrain, public: 300") + "seeds: [0]\n" + more)
    with pytest.raises(FkdError, match=f"^experiment x.yaml: .*{NONSENSE[more]}"):
        check_cells(cells_of(experiment, {}), experiment.where)


def test_an_extractor_that_is_to_be_trained_needs_images(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="public = 0: extractor pretrain learns from labelled public images"):
        check_cells(cells_of(parsed(DIGITS + "methods: [fkd-rtm]\nseeds: [0]"), {}), "x.yaml")
    (tmp_path / "e.safetensors").write_bytes(b"nothing of the kind")
    content = f"title: t\ndata: {{a: {{source: digits, extractor: {tmp_path}/e.safetensors}}}}\nmethods: [fkd-rtm]\n"
    with pytest.raises(DataError, match=f"x.yaml: .*{tmp_path}/e"):
        check_cells(cells_of(parsed(content), {}), "x.yaml")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{source: digit}", "source = digit: .*did you mean digits"),
        ("{source: 'npx:/a'}", "source = npx:/a: there is no kind npx: did you mean npz"),
        ("{source: 'npz:'}", "source = nothing"),
        ("{source: digits, extractor: resnet}", "extractor = resnet: .*did you mean resnet18"),
    ],
)
def test_a_misspelt_source_or_extractor_is_named(data: str, said: str) -> None:
    experiment = parsed(f"title: t\nmethods: [fkd-rtm]\ndata: {{a: {data}}}\n")
    with pytest.raises(FkdError, match=f"^experiment x.yaml: data set a: {said}"):
        cells_of(experiment, {})


def test_a_grid_that_nobody_meant_is_counted_and_never_spanned() -> None:
    experiment = parsed(SMALL)
    assert experiment.count() == 12
    with pytest.raises(UsageError, match=r"12,000,000 cells .* are more than 10,000"):
        cells_of(experiment, {}, range(2_000_000))


def test_a_method_is_called_as_its_class_says() -> None:
    cells = cells_of(
        parsed(DIGITS + "seeds: [0]\nmethods: [local, central, fkd-rtm, {method: fedavg, label: Mine}]"), {}
    )
    assert [cell.label for cell in cells] == ["Local only", "Central", "FKD-RTM", "Mine"]
    with pytest.raises(UsageError, match=r"x\.yaml: methods: FedAvg is there twice"):
        cells_of(parsed(DIGITS + "methods: [fedavg, {label: FedAvg}]"), {})


def test_named_methods_and_presets_exist() -> None:
    content = DIGITS + "seeds: [0]\nmethods: all"
    assert len({cell.label for cell in cells_of(parsed(content), {})}) == len(ALL_METHODS) == 18
    for keys in PRESETS.values():
        RunConfig(**keys)


@pytest.mark.parametrize("name", ready_experiments())
def test_a_ready_experiment_spans_cells(name: str) -> None:
    experiment, _ = find_experiment(name)
    cells = cells_of(experiment, None)
    assert len(cells) == len({cell.id for cell in cells})
    assert experiment.question


def test_experiments_that_ask_otherwise_about_the_same_runs_share_them() -> None:
    ids = [
        {cell.id for cell in cells_of(find_experiment(name)[0], None)}
        for name in ("e01-cifar10", "e11-traffic", "e12-curves", "e16-time")
    ]
    assert ids[0] == ids[1] == ids[2] == ids[3]


def test_an_experiment_is_found_by_name_or_file(small: Path) -> None:
    assert find_experiment(str(small))[0].name == "small"
    with pytest.raises(UsageError, match="no experiment e01-cifar: did you mean e01-cifar10"):
        find_experiment("e01-cifar")
    with pytest.raises(UsageError, match=r"nowhere\.yaml cannot be read"):
        find_experiment("nowhere.yaml")
