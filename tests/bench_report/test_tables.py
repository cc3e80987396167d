"""Means, spreads, who is best and what is missing, on numbers that a reader can check by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fkd_bench.compare.answers import RunSettings, answers
from fkd_bench.compare.measures import Record, Spread, curve, measure
from fkd_bench.compare.survey import Survey
from fkd_bench.compare.tables import Entry, Table, measure_table, pooled_std, standing, traffic_table


def record(label: str, value: float | None, seed: int = 0, **more: Any) -> Record:
    """A finished cell whose global model has this accuracy."""
    made: Record = {
        "cell": repr((label, seed, more.get("varied"))), "label": label, "method": label.lower(), "seed": seed,
        "varied": {}, "accuracy": {"global": value}, "error": None,
    }  # fmt: skip
    return made | more


def table_of(records: list[Record], metrics: tuple[str, ...] = ("global",), **experiment: Any) -> Table:
    survey = Survey.of(records, experiment)
    found = measure_table(survey, survey.settings[0], metrics, "Results")
    assert found is not None
    return found


def entries(table: Table) -> dict[str, list[Entry]]:
    return {row.label: list(row.entries) for row in table.rows}


# -- mean and spread ----------------------------------------------------------------------------------


def test_a_spread_divides_by_one_less_than_its_values() -> None:
    assert Spread.over([1.0, 2.0, 3.0, None]) == Spread(2.0, 1.0, 3)
    assert Spread.over([0.5]) == Spread(0.5, None, 1)
    assert Spread.over([None]) is None


def test_an_entry_is_mean_and_std_in_percent_with_two_decimals() -> None:
    table = table_of([record("A", 0.70, 0), record("A", 0.72, 1), record("A", 0.74, 2)])
    assert entries(table)["A"] == [Entry("72.00 (2.00)")]
    assert ("", "mean (standard deviation, ddof = 1) over 3 seeds") in table.notes


def test_one_seed_has_no_spread_and_the_table_says_so() -> None:
    table = table_of([record("A", 0.7), record("B", 0.7001)])
    assert entries(table) == {"A": [Entry("70.00")], "B": [Entry("70.01", best=True)]}
    assert ("", "one seed: no spread is known, and nothing can be told apart by it") in table.notes


def test_the_pooled_std_weighs_each_spread_by_its_freedom() -> None:
    # (2 * 1 + 1 * 4) / 3 = 2
    assert pooled_std(Spread(0, 1.0, 3), Spread(0, 2.0, 2)) == pytest.approx(math.sqrt(2))
    assert pooled_std(Spread(0, None, 1), Spread(0, 3.0, 3)) == pytest.approx(3.0)
    assert pooled_std(Spread(0, None, 1), Spread(0, None, 1)) < 0


# -- which one is best --------------------------------------------------------------------------------


def test_all_that_print_alike_are_best_and_what_lies_within_a_pooled_std_is_close() -> None:
    spreads = {
        "A": Spread(72.004, 1.0, 3),
        "B": Spread(71.996, 1.0, 3),
        "C": Spread(71.10, 1.0, 3),
        "D": Spread(70.90, 1.0, 3),
    }
    assert standing(spreads, measure("global")) == ({"A", "B"}, {"C"})


def test_where_nothing_is_compared_nothing_is_best() -> None:
    assert standing({"A": Spread(1.0, None, 1)}, measure("global")) == (set(), set())


def test_less_is_better_of_errors_and_nothing_is_of_bytes() -> None:
    spreads = {"A": Spread(5.0, None, 1), "B": Spread(3.0, None, 1)}
    assert standing(spreads, measure("ece"))[0] == {"B"}
    assert standing(spreads, measure("total")) == (set(), set())


def test_a_mean_of_clients_models_is_marked_and_never_the_best_global_model() -> None:
    clients_only = record("FedMD", None, accuracy={"global": None, "personal_full": 0.9})
    table = table_of([record("FedAvg", 0.5), record("FedProx", 0.4), clients_only])
    assert entries(table) == {
        "FedAvg": [Entry("50.00", best=True)],
        "FedProx": [Entry("40.00")],
        "FedMD": [Entry("90.00", marks="†")],
    }
    assert any(sign == "†" and "no global model" in text for sign, text in table.notes)


def test_the_pooled_bound_is_shown_and_not_compared() -> None:
    table = table_of([record("FedAvg", 0.5), record("FedProx", 0.4), record("Central", 0.9)])
    assert entries(table)["Central"] == [Entry("90.00", marks="‡")]
    assert entries(table)["FedAvg"][0].best


def test_a_method_without_a_measure_has_a_dash_without_a_mark() -> None:
    both = {"global": 0.5, "personal_matched": 0.8}
    table = table_of([record("A", 0, accuracy=both), record("B", 0.4)], ("global", "personal_matched"))
    assert entries(table)["B"] == [Entry("40.00"), Entry("–")]
    assert ("", "–: the method has no such figure") in table.notes


def test_a_measure_that_nobody_has_gets_no_column() -> None:
    table = table_of([record("A", 0.5)], ("global", "personal_matched"))
    assert table.columns == ("global, %",)


# -- what is missing ----------------------------------------------------------------------------------


def test_cells_that_failed_or_were_not_run_are_named_beside_what_is_there() -> None:
    cells = [
        record("A", 0.70, 0), record("A", 0.72, 1),
        record("B", 0.60, 0), record("B", None, 1, error="no\nquorum: /home/me/a.log, http://b/c", accuracy={}),
        record("C", 0.50, 0),
    ]  # fmt: skip
    table = table_of(cells, labels=["A", "B", "C", "D"])
    found = entries(table)
    assert found["B"] == [Entry("60.00", marks="a")]
    assert found["C"] == [Entry("50.00", marks="b")]
    assert found["D"] == [Entry("–", marks="c")]
    assert dict(table.notes)["a"] == "seed 1 failed: no quorum: …/a.log, http://b/c"
    assert dict(table.notes)["b"] == "seed 1 not run"
    assert dict(table.notes)["c"] == "seeds 0, 1 not run"


def test_a_cell_that_failed_and_was_repeated_counts_as_finished() -> None:
    failed = record("A", None, error="killed", accuracy={})
    for order in ([failed, record("A", 0.7)], [record("A", 0.7), failed]):
        assert entries(table_of(order))["A"] == [Entry("70.00")]


def test_rows_that_compute_the_same_are_both_shown() -> None:
    same = [record(label, 0.7, cell="equal") for label in ("FKD-RTM", "aligned")]
    assert list(entries(table_of(same))) == ["FKD-RTM", "aligned"]


def test_what_is_left_of_a_row_without_any_cell_is_asked_of_the_axes_too() -> None:
    survey = Survey.of([record("A", 0.7, varied={"eps": 1})], {"axes": {"eps": [1, 2]}, "columns": "eps"})
    assert [panel.title for panel in survey.panels] == ["eps 1", "eps 2"]
    assert survey.absent(survey.panels[1], "A") == "seed 0 not run"


# -- layout -------------------------------------------------------------------------------------------


def test_columns_are_values_by_measures_and_other_axes_make_tables_of_their_own() -> None:
    cells = [
        record(label, 0.5, varied={"partition": partition, "clients": clients})
        for label in ("A", "B") for clients in (100, 20) for partition in ("dirichlet:0.5", "dirichlet:0.1")
    ]  # fmt: skip
    survey = Survey.of(cells, {"columns": "partition"})
    assert survey.settings == [(("clients", "20"),), (("clients", "100"),)]
    table = measure_table(survey, survey.settings[0], ["global"], "Results")
    assert table is not None
    assert table.caption == "Results: clients 20"
    assert table.groups == (("partition dirichlet:0.1", 1), ("partition dirichlet:0.5", 1))


def test_an_order_that_the_experiment_gives_is_kept() -> None:
    cells = [record(label, 0.5, varied={"eps": eps}) for eps in (1, 2) for label in ("A", "B")]
    survey = Survey.of(cells, {"columns": "eps", "labels": ["B", "A"], "axes": {"eps": [2, 1]}})
    assert survey.labels == ("B", "A")
    assert [panel.column for panel in survey.panels] == ["2", "1"]


def test_a_single_methods_columns_become_its_rows() -> None:
    cells = [record("A", 0.5 + eps / 10, varied={"eps": eps}) for eps in (1, 2)]
    survey = Survey.of(cells, {"columns": "eps"}).with_columns_as_rows()
    table = measure_table(survey, (), ["global"], "Results")
    assert table is not None
    assert table.stub == "eps"
    assert entries(table) == {"eps 1": [Entry("60.00")], "eps 2": [Entry("70.00", best=True)]}


# -- traffic ------------------------------------------------------------------------------------------


def learner(label: str, scores: list[float | None], seed: int = 0, final: float = 0.0) -> Record:
    """Ten bytes up and twenty down a round, in millions."""
    rounds = [
        {"round": place + 1, "accuracy": score, "up": 10e6 * (place + 1), "down": 20e6 * (place + 1)}
        for place, score in enumerate(scores)
    ]
    count = len(scores)
    traffic = {"up": 10e6 * count, "down": 20e6 * count}
    return record(label, final or scores[-1], seed, rounds=rounds, bytes=traffic)


def test_a_curve_has_the_scored_rounds_and_ends_with_the_final_accuracy() -> None:
    points = curve(learner("A", [0.1, None, None], final=0.5))
    assert [(point.round, point.accuracy, point.total_bytes) for point in points] == [
        (1, 10.0, 30e6), (3, 50.0, 90e6),
    ]  # fmt: skip


def test_a_curve_is_of_the_models_that_were_published_and_keeps_the_last_one() -> None:
    published = learner("FKD-RTM", [0.5, 0.1, 0.2, 0.6], final=0.6)
    for place, line in enumerate(published["rounds"]):
        line["accuracies"] = {"student": line["accuracy"]}
        if place in (1, 3):
            line["accuracies"]["published"] = line["accuracy"]
    points = [(point.round, point.accuracy) for point in curve(published)]
    assert points == [(2, pytest.approx(10.0)), (3, pytest.approx(10.0)), (4, pytest.approx(60.0))]


def test_traffic_is_counted_until_shares_of_the_best_baseline_are_reached() -> None:
    cells = [
        learner("FedAvg", [0.3, 0.5, 0.97]), learner("FedProx", [0.4, 0.98, 1.0]),
        learner("FKD-RTM", [0.96, 0.96, 0.96]), learner("FedMD", [0.2, 0.2, 0.2]),
    ]  # fmt: skip
    survey = Survey.of(cells, {})
    table = traffic_table(survey, survey.panels[0])
    assert table is not None
    texts = {label: [entry.text for entry in row] for label, row in entries(table).items()}
    assert texts == {
        "FedAvg": ["30.00", "60.00", "90.00", "3", "90.00", "never", "never"],
        "FedProx": ["30.00", "60.00", "90.00", "2", "60.00", "3", "90.00"],
        "FKD-RTM": ["30.00", "60.00", "90.00", "1", "30.00", "never", "never"],
        "FedMD": ["30.00", "60.00", "90.00", "never", "never", "never", "never"],
    }
    assert any("FedProx, the best baseline (100.00 %)" in text for _, text in table.notes)


def test_a_target_that_some_seeds_miss_says_how_many_reached_it() -> None:
    cells = [learner("A", [0.5, 1.0], 0), learner("A", [0.5, 0.98], 1), learner("A", [0.5, 0.90], 2)]
    survey = Survey.of(cells, {})
    table = traffic_table(survey, survey.panels[0])
    assert table is not None
    # 95 % of 96 % are 91.2 %.
    assert entries(table)["A"][3] == Entry("2", marks="a")
    assert dict(table.notes)["a"] == "reached with 2 of 3 seeds, mean over these"


def test_without_counted_bytes_there_is_no_table_of_traffic() -> None:
    survey = Survey.of([record("A", 0.5)], {})
    assert traffic_table(survey, survey.panels[0]) is None


# -- words --------------------------------------------------------------------------------------------


def test_the_answer_names_the_best_its_lead_and_where_fkd_rtm_stands() -> None:
    cells = [record("FED3R", 0.72), record("FedAvg", 0.70), record("FKD-RTM", 0.65)]
    assert answers(Survey.of(cells, {}), ["global"]) == [
        "global: FED3R, 72.00 %; next FedAvg, 2.00 behind; FKD-RTM, 7.00 behind"
    ]


def test_the_settings_are_what_most_have_and_what_each_has_otherwise() -> None:
    cells = [
        record("A", 0.5, config={"seed": 0, "rounds": 30, "norm": None, "options": {}}),
        record("B", 0.5, config={"seed": 0, "rounds": 30, "norm": None, "options": {"mu": 0.01}}),
        record("C", 0.5, config={"seed": 0, "rounds": 1, "norm": None, "options": {}}),
    ]
    settings = RunSettings.of(Survey.of(cells, {}))
    assert settings.common == (("rounds", "30"), ("norm", "none"))
    assert settings.differing == {"rounds"}
    assert settings.by_label == (("A", "a", ""), ("B", "b", "mu = 0.01"), ("C", "c", "rounds = 1"))
