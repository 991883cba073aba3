"""Names from files, escaped for the formats of a report."""

import json
import re
import textwrap

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\texttt{\char34}",  # \textquotedbl needs T1 fonts
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",  # two would become a dash
    "[": "{[}",  # after the end of a row, a bracket or a star would belong to it
    "]": "{]}",
    "*": "{*}",
    "−": "$-$",
    "→": r"$\to$",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    "–": "--",
    "λ": r"$\lambda$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
}
_RARE = frozenset("ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲųſ")
"""Latin letters that pdflatex cannot print in its default encoding."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]|$~#])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_WIDTH = 28
"""Characters of a line in the legend of a figure."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def latex(text: str) -> str:
    """Return LaTeX that prints this text; needs no package but textcomp, which is in the kernel.

    A letter that pdflatex may not know is printed by its number.
    """
    return "".join(_latex(letter) for letter in text)


def _latex(letter: str) -> str:
    if letter in _LATEX:
        return _LATEX[letter]
    latin = "\u00c0" <= letter <= "\u017f" and letter.isalpha() and letter not in _RARE
    if letter.isascii() or latin:
        return letter
    return rf"\texttt{{U+{ord(letter):04X}}}"


def markdown(text: str) -> str:
    """Return Markdown that shows this text, in a table too."""
    plain = "".join(_ENTITIES.get(letter, letter) for letter in text)
    return _MARKDOWN.sub(r"\\\1", plain)


def sheet(value: object) -> object:
    """Return a cell of a CSV file; a text that a spreadsheet would compute gets a quote before."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def plot(text: str) -> str:
    """Return text for a figure: no mathematics, short lines, and no label that a legend skips."""
    lines = textwrap.wrap(text, _WIDTH, break_on_hyphens=False) or [""]
    plain = "\n".join(lines).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def script(data: object) -> str:
    """Return JSON that can stand in a script element of a page."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
