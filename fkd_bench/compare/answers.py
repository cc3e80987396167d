"""What an experiment answers and how it was set, in words: who is best by how much, and which settings differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fkd_bench.compare.measures import Record, measure, value_text
from fkd_bench.compare.survey import Panel, Survey
from fkd_bench.compare.tables import comparable, standing

MOST_ANSWERS = 16
_OWN_KEYS = frozenset({"method", "seed", "options"})


def answers(survey: Survey, names: Sequence[str]) -> list[str]:
    """One sentence for every column and measure of the main tables: the best, its lead, and where FKD-RTM stands.

    Args:
        survey: The cells.
        names: Of measures; those where a best one means nothing are left out.
    """
    found = [
        sentence
        for panel in survey.panels
        for name in names
        if (sentence := _answer(survey, panel, name)) is not None
    ]
    more = len(found) - MOST_ANSWERS
    return found if more <= 0 else [*found[:MOST_ANSWERS], f"and {more} more: see the tables"]


def _answer(survey: Survey, panel: Panel, name: str) -> str | None:
    shown, means = measure(name), comparable(survey, panel, name)
    best, close = standing(means, shown)
    if not best or len(means) < 2:
        return None
    top = max(shown.better * means[label].mean for label in best) * shown.better
    heading, percent = shown.heading.removesuffix(", %"), " %" if shown.heading.endswith("%") else ""
    who = "all alike" if len(best) == len(means) else " and ".join(one for one in means if one in best)
    subject = f"{panel.title}, {heading}" if panel.title else heading
    sentence = f"{subject}: {who}, {top:.{shown.decimals}f}{percent}"
    rest = {label: spread.mean for label, spread in means.items() if label not in best}
    second = max(rest, key=lambda label: shown.better * rest[label], default=None)
    for label, word in ((second, "next "), (survey.emphasised, "")):
        if label in rest and (word or label != second):
            apart = " (within one pooled std)" if label in close else ""
            sentence += f"; {word}{label}, {abs(top - rest[label]):.{shown.decimals}f} behind{apart}"
    return sentence


@dataclass(frozen=True)
class RunSettings:
    """The run configurations of an experiment, told once."""

    common: tuple[tuple[str, str], ...]
    """Keys and the value that most labels have, axes left out."""
    differing: frozenset[str]
    """Those of the keys that some label has otherwise."""
    by_label: tuple[tuple[str, str, str], ...]
    """Label, method and what it has otherwise, options first."""

    @classmethod
    def of(cls, survey: Survey) -> RunSettings:
        """From the configurations in the records, failed ones too."""
        configs: dict[str, list[Record]] = {label: [] for label in survey.labels}
        for record in (*(one for panel in survey.panels for one in panel.records), *survey.failed):
            configs[record["label"]].append(record.get("config") or {})
        keys = [
            key
            for key in dict.fromkeys(key for own in configs.values() for config in own for key in config)
            if key not in survey.varying and key not in _OWN_KEYS
        ]
        values = {key: {label: _values(own, key) for label, own in configs.items() if own} for key in keys}
        usual = {key: Counter(by.values()).most_common(1)[0][0] for key, by in values.items()}
        differing = frozenset(key for key, by in values.items() if len(set(by.values())) > 1)
        return cls(
            common=tuple(usual.items()),
            differing=differing,
            by_label=tuple(
                (
                    label,
                    survey.methods.get(label, ""),
                    ", ".join(
                        [
                            *_options(own),
                            *(
                                f"{key} = {values[key][label]}"
                                for key in keys
                                if own and values[key][label] != usual[key]
                            ),
                        ]
                    ),
                )
                for label, own in configs.items()
            ),
        )


def _values(configs: Sequence[Record], key: str) -> str:
    """The value, or all of them where a label's cells differ."""
    return " / ".join(dict.fromkeys(value_text(config.get(key)) for config in configs))


def _options(configs: Sequence[Record]) -> Iterator[str]:
    names = dict.fromkeys(name for config in configs for name in config.get("options") or {})
    for name in names:
        values = dict.fromkeys(value_text((config.get("options") or {}).get(name)) for config in configs)
        yield f"{name} = {' / '.join(values)}"
