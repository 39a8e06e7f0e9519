"""What `lint` finds in a config.properties, and the report it is collected in.

    error     the file does not do what it says
    warning   it does, and this is probably not wanted
    note      worth knowing
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from configs.properties import Entry

Severity = Literal["error", "warning", "note"]
_PLACEHOLDER = re.compile(r"\$\$[^$]+\$\$")


@dataclass(frozen=True)
class Finding:
    """One mistake.

    Attributes:
        line: counted from 1; 1 too where something is missing from the file.
        key: the key concerned, as the file has it.
    """

    line: int
    key: str
    message: str
    remedy: str
    severity: Severity


@dataclass
class Report:
    """The file's keys, and what has been found so far.

    Attributes:
        keys: the last entry of each key: the one that TorchServe uses.
    """

    keys: dict[str, Entry]
    findings: list[Finding] = field(default_factory=list)

    def value(self, key: str, default: str = "") -> str:
        """A key's value without surrounding blanks."""
        return self.keys[key].value.strip() if key in self.keys else default

    def says(self, key: str) -> bool:
        """Whether a boolean key is true, as Java reads it: false where it is missing, or has a blank at its end."""
        return key in self.keys and self.keys[key].value.lower() == "true"

    def error(self, where: Entry | str, message: str, remedy: str, needle: str = "") -> None:
        """Adds a finding about an entry (the line of it that holds the needle), or a key that may be missing."""
        self._add("error", where, message, remedy, needle)

    def warning(self, where: Entry | str, message: str, remedy: str, needle: str = "") -> None:
        """Likewise."""
        self._add("warning", where, message, remedy, needle)

    def note(self, where: Entry | str, message: str, remedy: str, needle: str = "") -> None:
        """Likewise."""
        self._add("note", where, message, remedy, needle)

    def _add(self, severity: Severity, where: Entry | str, message: str, remedy: str, needle: str) -> None:
        entry = self.keys.get(where) if isinstance(where, str) else where
        if entry is None:
            self.findings.append(Finding(1, str(where), message, remedy, severity))
            return
        offset = next((i for i, line in enumerate(entry.text) if needle in line), 0)
        self.findings.append(Finding(entry.line + offset, entry.key, message, remedy, severity))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that somebody may have meant, or ""."""
    by_lower = {each.lower(): each for each in sorted(known)}
    close = get_close_matches(name.lower(), by_lower, 1, 0.75)
    return by_lower[close[0]] if close else ""


def filled_in_later(value: str) -> bool:
    """Whether TorchServe completes the value from the environment: $$VARIABLE$$."""
    return _PLACEHOLDER.search(value) is not None
