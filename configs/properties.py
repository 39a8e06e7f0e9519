"""config.properties as its two readers see it: Java's Properties, and the few lines of Python in TorchServe's launcher.

Only reading lives here; what to make of it, in `lint`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(r"\r\n|\r|\n")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True)
class Entry:
    """One key of the file.

    Attributes:
        line: of its first line, counted from 1.
        key, value: as Java has them: unescaped, trailing blanks kept.
        separator: what stands between: "=", ":", " " or, without a value, "".
        text: its lines as they are in the file.
    """

    line: int
    key: str
    value: str
    separator: str
    text: tuple[str, ...]

    @property
    def continued(self) -> bool:
        """Whether it goes on over several lines, which only Java understands."""
        return len(self.text) > 1


def entries(text: str) -> Iterator[Entry]:
    """What Java reads from a file: comments and empty lines left out, continued lines joined."""
    lines = _LINE_END.split(text)
    number = 0
    while number < len(lines):
        first = number
        logical = lines[number].lstrip(" \t\f")
        number += 1
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical) and number < len(lines):
            logical = logical[:-1] + lines[number].lstrip(" \t\f")
            number += 1
        yield _entry(logical.removesuffix("\\") if _continues(logical) else logical, first, tuple(lines[first:number]))


def python_view(text: str) -> dict[str, str]:
    """What TorchServe's Python launcher reads: single lines, split at the first "=", blanks stripped, nothing else."""
    found = {}
    for line in map(str.strip, _LINE_END.split(text)):
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found[key.strip()] = value.strip()
    return found


def _continues(line: str) -> bool:
    """Whether a line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(logical: str, first: int, text: tuple[str, ...]) -> Entry:
    match = re.match(r"((?:\\.|[^\\=: \t\f])*)([ \t\f]*)([=:]?)[ \t\f]*(.*)", logical, re.DOTALL)
    assert match is not None  # every part may be empty
    key, blanks, separator, value = match.groups()
    return Entry(first + 1, _unescape(key), _unescape(value), separator or blanks[:1].replace("\t", " "), text)


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text, flags=re.DOTALL)
