"""Tables as Markdown and LaTeX; every text is escaped, as labels and errors come from elsewhere."""

from __future__ import annotations

import re

from fkd_bench.compare.tables import Entry, Table
from fkd_common.printable import printable

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$!])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "κ": r"$\kappa$",
    "ε": r"$\varepsilon$",
}


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, also within a table."""
    return _MARKDOWN.sub(r"\\\1", printable(text).replace("&", "&amp;"))


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in printable(text))


# -- Markdown -----------------------------------------------------------------------------------------


def markdown(table: Table) -> str:
    """A table of GitHub's Markdown, its caption in bold above it and its notes below."""
    above = [name for name, span in table.groups for _ in range(span)] or [""] * len(table.columns)
    headings = [
        f"{escape_markdown(group)}<br>{escape_markdown(column)}" if group else escape_markdown(column)
        for group, column in zip(above, table.columns, strict=True)
    ]
    lines = [
        f"**{escape_markdown(table.caption)}**",
        "",
        _markdown_row([escape_markdown(table.stub), *headings]),
        "|---" + "|--:" * len(headings) + "|",
    ]
    for row in table.rows:
        label = escape_markdown(row.label)
        lines.append(
            _markdown_row([f"**{label}**" if row.emphasised else label, *map(_markdown_entry, row.entries)])
        )
    lines.append("")
    for sign, text in table.notes:
        lines.append(f"- {f'<sup>{escape_markdown(sign)}</sup> ' if sign else ''}{escape_markdown(text)}")
    return "\n".join(lines) + "\n"


def _markdown_row(parts: list[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _markdown_entry(entry: Entry) -> str:
    text = escape_markdown(entry.text)
    if entry.best:
        text = f"**{text}**"
    elif entry.close:
        text = f"<ins>{text}</ins>"
    return f"{text}<sup>{escape_markdown(entry.marks)}</sup>" if entry.marks else text


# -- LaTeX --------------------------------------------------------------------------------------------


def latex(table: Table) -> str:
    r"""A ``table`` with a ``tabular`` of booktabs; needs ``\usepackage{booktabs}`` and T1 or Unicode fonts."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(table.caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
    ]
    if table.groups:
        spans = [rf"\multicolumn{{{span}}}{{c}}{{{escape_latex(name)}}}" for name, span in table.groups]
        lines += [_latex_row(["", *spans]), _latex_rules(table)]
    lines += [_latex_row([escape_latex(text) for text in (table.stub, *table.columns)]), r"\midrule"]
    for row in table.rows:
        label = escape_latex(row.label)
        lines.append(
            _latex_row([rf"\textbf{{{label}}}" if row.emphasised else label, *map(_latex_entry, row.entries)])
        )
    lines += [r"\bottomrule", r"\end{tabular}", r"\par\smallskip\footnotesize"]
    lines += [
        (rf"\textsuperscript{{{escape_latex(sign)}}}~" if sign else "")
        + escape_latex(text.rstrip("."))
        + r".\ "
        for sign, text in table.notes
    ]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_row(parts: list[str]) -> str:
    return " & ".join(parts) + r" \\"


def _latex_rules(table: Table) -> str:
    rules, first = [], 2
    for _, span in table.groups:
        rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
        first += span
    return "".join(rules)


def _latex_entry(entry: Entry) -> str:
    text = escape_latex(entry.text)
    if entry.best:
        text = rf"\textbf{{{text}}}"
    elif entry.close:
        text = rf"\underline{{{text}}}"
    return rf"{text}\textsuperscript{{{escape_latex(entry.marks)}}}" if entry.marks else text
