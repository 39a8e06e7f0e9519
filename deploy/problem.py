"""What a rule finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that would go wrong in a cluster.

    Attributes:
        where: the object, and the field where that helps.
        why: the value found.
        remedy: what would be right.
    """

    where: str
    why: str
    remedy: str


# problems; or a few words, where there is none; or None, where it cannot be told
Found = list[Problem] | str | None
