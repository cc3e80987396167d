"""From summaries and reports to one result object and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from fkd_bench.federation import FederationResult
from fkd_server.result_tables import align_right, bytes_table, percent

Json = dict[str, Any]
CLIENT_PHASES = ("embed", "teacher", "local", "student", "residual", "moments", "votes", "personal", "assess")


def result_object(result: FederationResult, seed: int, *, shared_process: bool) -> Json:
    """One federation as one JSON object: accuracies 0...1, bytes per client summed over the run."""
    summary, reports = result.summary, result.reports
    tested = [report["personal"]["test_accuracy"] for report in reports]
    chosen = [report["personal"]["chosen"] for report in reports]
    by_kind = {
        kind: {
            view: _mean(scores[kind][view] for scores in tested if kind in scores)
            for view in ("full", "matched")
        }
        for kind in sorted({kind for scores in tested for kind in scores} - {"teacher"})
    }
    accuracy = {
        name: summary["accuracy"].get(name) for name in ("student", "anchors", "moments", "published")
    }
    kept = [(scores, kind) for scores, kind in zip(tested, chosen, strict=True) if kind in scores]
    accuracy["personal_full"] = _mean(scores[kind]["full"] for scores, kind in kept)
    accuracy["personal_matched"] = _mean(scores[kind]["matched"] for scores, kind in kept)
    teachers = [scores["teacher"] for scores in tested if "teacher" in scores]
    accuracy["local_only"] = _mean(scores["full"] for scores in teachers)
    accuracy["local_only_matched"] = _mean(scores["matched"] for scores in teachers)
    phases = [p for p in CLIENT_PHASES if any(p in report["seconds"] for report in reports)]
    seconds = {
        phase: round(_mean(report["seconds"].get(phase, 0.0) for report in reports) or 0.0, 3)
        for phase in phases
    }
    return {
        "accuracy": accuracy,
        "personal": by_kind,
        "bytes": summary["bytes"],
        "seconds": {**seconds, "wall": round(result.wall_s, 2)},
        "server": {**summary["server"], "shares_process_with_clients": shared_process},
        "model_hash": summary["model_hash"],
        "config_hash": summary["config_hash"],
        "partition_hash": result.manifest.partition_sha256,
        "seed": seed,
    }


def summarise(results: list[Json]) -> Json:
    """Several seeds as one object: mean and standard deviation (ddof = 1) of accuracies and seconds."""
    spread: Json = {"seeds": [result["seed"] for result in results], "mean": {}, "std": {}, "runs": results}
    for group in ("accuracy", "seconds"):
        for name in results[0][group]:
            values = [result[group].get(name) for result in results]
            known = [value for value in values if value is not None]
            spread["mean"].setdefault(group, {})[name] = statistics.fmean(known) if known else None
            spread["std"].setdefault(group, {})[name] = statistics.stdev(known) if len(known) > 1 else None
    kinds = results[0]["personal"]
    for kind in kinds:
        values = [result["personal"][kind]["matched"] for result in results if kind in result["personal"]]
        spread["mean"].setdefault("personal_matched_by_kind", {})[kind] = statistics.fmean(values)
        spread["std"].setdefault("personal_matched_by_kind", {})[kind] = (
            statistics.stdev(values) if len(values) > 1 else None
        )
    return spread


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


# -- tables -------------------------------------------------------------------------------------------

_ROWS = (
    ("averaged student", "student"),
    ("  + anchors", "anchors"),
    ("  + moments", "moments"),
    ("published", "published"),
)


_PHASE_LABELS = {"assess": "assess on the test set", "wall": "wall, whole federation"}


def print_result(result: Json) -> None:
    """Accuracy, then bytes by phase, on standard output."""
    console, accuracy = Console(), result["accuracy"]
    table = Table("model", "test set", "client-matched test", title="accuracy")
    for label, name in _ROWS:
        if accuracy[name] is not None:
            table.add_row(label, percent(accuracy[name]), "")
    table.add_section()
    table.add_row("personal, mean", percent(accuracy["personal_full"]), percent(accuracy["personal_matched"]))
    for kind, scores in result["personal"].items():
        table.add_row(
            f"  {kind.replace('_', ' ')}", percent(scores["full"]), percent(scores["matched"]), style="dim"
        )
    if accuracy["local_only"] is not None:
        table.add_section()
        table.add_row(
            "local teacher alone, mean",
            percent(accuracy["local_only"]),
            percent(accuracy["local_only_matched"]),
        )
    console.print(align_right(table))
    console.print(bytes_table(result["bytes"]))
    print_seconds(console, result["seconds"])
    server = result["server"]
    console.print(f"coordinator: peak memory {server['peak_rss_mb']} MB, {server['cpu_s']} s of CPU")
    console.print(f"model sha256 {result['model_hash']}", soft_wrap=True)


def print_summary(summary: Json) -> None:
    """Mean ± standard deviation over seeds, on standard output."""
    console = Console()
    seeds = ", ".join(str(seed) for seed in summary["seeds"])
    table = Table("model", "mean", "std", title=f"accuracy over seeds {seeds}")
    for name, mean in summary["mean"]["accuracy"].items():
        table.add_row(name.replace("_", " "), percent(mean), percent(summary["std"]["accuracy"][name]))
    for kind, mean in summary["mean"].get("personal_matched_by_kind", {}).items():
        std = summary["std"]["personal_matched_by_kind"][kind]
        table.add_row(f"  {kind.replace('_', ' ')}, matched", percent(mean), percent(std), style="dim")
    console.print(align_right(table))
    print_seconds(console, summary["mean"]["seconds"])


def print_seconds(console: Console, seconds: Json) -> None:
    """Where the time went, mean over clients."""
    table = Table("phase", "seconds", title="time, mean over clients")
    for phase, value in seconds.items():
        if phase == "wall":
            table.add_section()
        table.add_row(_PHASE_LABELS.get(phase, phase), f"{value:.1f}")
    console.print(align_right(table))
