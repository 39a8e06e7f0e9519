"""Everything that `configs` (and what stands on it: `serving`, `measure`, `scripts`) raises on purpose.

    ToolkitError
    ├── MachineError    what the kernel says about this machine or pod cannot be used
    ├── SettingsError   a file that a user wrote is wrong
    └── ServerError     TorchServe did not start, answer or stop as it should

Commands print these without a traceback and exit 2; anything else is a bug and keeps its traceback.
`handlers.errors` holds the twin for what goes into an archive, since neither room imports the other.
"""


class ToolkitError(Exception):
    """What went wrong, where, why, and what to do about it.

    Args:
        what: one sentence: the thing that cannot be done.
        where: the file, field, CPU or address concerned.
        why: the value found, or the underlying message.
        remedy: what would be right, or the command to run next.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.remedy = what, where, why, remedy

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  {name}: {text}" for name, text in
                  (("where", self.where), ("why", self.why), ("remedy", self.remedy)) if text]
        return "\n".join(lines)


class MachineError(ToolkitError):
    """What the kernel says about this machine or pod cannot be used."""


class SettingsError(ToolkitError):
    """A file that a user wrote is wrong."""


class ServerError(ToolkitError):
    """TorchServe did not start, answer or stop as it should."""
