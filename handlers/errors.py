"""Everything that `handlers` and `models` raise on purpose.

    ToolkitError
    ├── ArtifactError   an artifact, or what it is to be built from, cannot be used
    └── InputError      one request is wrong: answered with a 400, and only that request

`configs.errors` holds the twin for the pod's side, since neither room imports the other.
"""


class ToolkitError(Exception):
    """What went wrong, where, why, and what to do about it.

    Args:
        what: one sentence: the thing that cannot be done.
        where: the file and field concerned.
        why: the value found, or the underlying message.
        remedy: what would be right.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.remedy = what, where, why, remedy

    def __str__(self) -> str:
        parts = (("where", self.where), ("why", self.why), ("remedy", self.remedy))
        return "\n".join([self.what, *(f"  {name}: {text}" for name, text in parts if text)])


class ArtifactError(ToolkitError):
    """An artifact, or what it is to be built from, cannot be used."""


class InputError(ToolkitError):
    """One request is wrong.

    Args:
        message: what the client sees; names the field, the value and what would be right.
        code: HTTP status (400, or 413 for what is too large).
    """

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code
