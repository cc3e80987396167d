"""What labels and errors say stays text, in Markdown and in LaTeX."""

from __future__ import annotations

from fkd_bench.compare.markup import escape_latex, escape_markdown, latex, markdown
from fkd_bench.compare.tables import Entry, Row, Table

TABLE = Table(
    caption="Results: 100 %",
    stub="method",
    groups=(("partition dirichlet:0.1", 2), ("iid", 1)),
    columns=("global, %", "up", "down"),
    rows=(
        Row("A_1|x", (Entry("71.00 (0.50)", best=True), Entry("–", marks="a"), Entry("1.00"))),
        Row(
            "FKD-RTM",
            (Entry("70.90 (0.40)", close=True), Entry("2", marks="†,b"), Entry("2")),
            emphasised=True,
        ),
    ),
    notes=(("", "bold: best"), ("a", "seed 1 failed: $x & y.")),
)


def test_markdown_is_a_table_with_bold_and_underlined_entries() -> None:
    assert markdown(TABLE).splitlines() == [
        "**Results: 100 %**",
        "",
        "| method | partition dirichlet:0.1<br>global, % | partition dirichlet:0.1<br>up | iid<br>down |",
        "|---|--:|--:|--:|",
        r"| A\_1\|x | **71.00 (0.50)** | –<sup>a</sup> | 1.00 |",
        "| **FKD-RTM** | <ins>70.90 (0.40)</ins> | 2<sup>†,b</sup> | 2 |",
        "",
        "- bold: best",
        r"- <sup>a</sup> seed 1 failed: \$x &amp; y.",
    ]


def test_latex_is_a_table_of_booktabs_with_spans() -> None:
    assert latex(TABLE).splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Results: 100 \%}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{partition dirichlet:0.1} & \multicolumn{1}{c}{iid} \\",
        r"\cmidrule(lr){2-3}\cmidrule(lr){4-4}",
        r"method & global, \% & up & down \\",
        r"\midrule",
        r"A\_1\textbar{}x & \textbf{71.00 (0.50)} & --\textsuperscript{a} & 1.00 \\",
        r"\textbf{FKD-RTM} & \underline{70.90 (0.40)} & 2\textsuperscript{$\dagger$,b} & 2 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize",
        "bold: best.\\ ",
        "\\textsuperscript{a}~seed 1 failed: \\$x \\& y.\\ ",
        r"\end{table}",
    ]


def test_every_letter_that_latex_obeys_is_escaped() -> None:
    hostile = "\\input{x} $1 & 2% #_~^ <a>|\n\\\\"
    assert escape_latex(hostile) == (
        r"\textbackslash{}input\{x\} \$1 \& 2\% \#\_\textasciitilde{}\textasciicircum{} "
        r"\textless{}a\textgreater{}\textbar{} \textbackslash{}\textbackslash{}"
    )


def test_no_label_breaks_out_of_a_markdown_table() -> None:
    assert escape_markdown("a|b\n| <script> [x](y) `z` **w** &lt; 10^6") == (
        r"a\|b \| \<script\> \[x\](y) \`z\` \*\*w\*\* &amp;lt; 10^6"
    )
