"""Experiments that come with the package, and those in files; runs nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from rich.table import Table
from rich.text import Text

from fkd_bench.compare.durations import as_time
from fkd_bench.compare.experiment import Experiment
from fkd_common.advice import did_you_mean
from fkd_common.errors import UsageError
from fkd_common.printable import printable

_ENDINGS = (".yaml", ".yml")


def ready_experiments() -> dict[str, str]:
    """The text of every experiment that comes with the package, by name, in the order of names."""
    found = files("fkd_bench").joinpath("experiments").iterdir()
    texts = {Path(each.name).stem: each.read_text() for each in found if each.name.endswith(_ENDINGS)}
    return dict(sorted(texts.items()))


def find_experiment(given: str) -> tuple[Experiment, str]:
    """An experiment by the name of a ready one or the path of a file, and its text.

    Raises:
        UsageError: There is none, or it says something that cannot be.
    """
    ready = ready_experiments()
    if given in ready:
        return Experiment.parse(ready[given], given, given), ready[given]
    path = Path(given).expanduser()
    if path.suffix in _ENDINGS or path.is_file():
        experiment = Experiment.read(path)
        return experiment, path.read_text()
    advice = did_you_mean(given, ready, "fkd-bench compare --list names them; or give a .yaml file")
    raise UsageError(f"no experiment {given}: {advice}")


def list_of_experiments() -> Table:
    """Every ready experiment: how many cells, how long on 2 cores, and what it is about."""
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("name", "left"), ("cells", "right"), ("2 cores", "right"), ("what", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]  # it is one of rich's words
    for name, content in ready_experiments().items():
        experiment = Experiment.parse(content, name, name)
        cost = "not measured" if experiment.minutes is None else as_time(60 * experiment.minutes)
        table.add_row(Text(name), str(experiment.count()), cost, Text(printable(experiment.title)))
    return table
