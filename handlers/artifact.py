"""What an archive says of itself: artifact.json, written when the model is built and read by its handler.

Plain data and its checks. The weights beside it are opened by `runtimes`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from handlers.errors import ArtifactError
from handlers.transforms import InputSpec

FORMAT = 2
FILE = "artifact.json"
AUTO = "auto"


@dataclass(frozen=True)
class NetworkFile:
    """The network as one runtime opens it.

    Attributes:
        file: beside artifact.json. What belongs to it (weights in a file of their own) has the same stem.
        package: what must be importable where it is opened; empty for none.
        cpu_flag: the instruction set it cannot do without, as /proc/cpuinfo calls it; empty for none.
    """

    file: str
    package: str = ""
    cpu_flag: str = ""


@dataclass(frozen=True)
class Artifact:
    """One built model.

    Attributes:
        runtime: the name in `runtimes.RUNTIMES` that was asked for; "auto" leaves the choice among `files` to whoever
            plans the pod.
        files: the network's file by runtime.
        batch_size: the largest batch the handler may be handed.
        max_batch_delay_ms: how long a worker waits for a batch to fill.
        handler: as model.yaml names it.
        labels: one per output of a classifier; empty for a scorer.
        groups: sets of label indices with a name ("food"), whose probabilities are summed.
        top_k: how many labels a classifier answers with.
        versions: of the packages that wrote the file.
        record: what building measured: quality on held-out data and parity with the reference.
    """

    name: str
    version: str
    runtime: str
    files: dict[str, NetworkFile]
    input: InputSpec
    batch_size: int
    max_batch_delay_ms: int
    handler: str
    labels: tuple[str, ...] = ()
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    top_k: int = 5
    versions: dict[str, str] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def serving_runtime(self, planned: str | None) -> str:
        """The runtime to open: the plan's, else the archive's own; without either the first of its files.

        Raises:
            ArtifactError: the archive was not built for it.
        """
        name = planned or (next(iter(self.files)) if self.runtime == AUTO else self.runtime)
        if name not in self.files:
            raise ArtifactError(f"the archive was not built for the runtime {name!r}", where=self.name,
                                why="it has " + ", ".join(self.files),
                                remedy=f"tscpu build --runtime {name} {self.name}")
        return name

    def write(self, folder: Path) -> None:
        """Writes artifact.json into a folder."""
        data = {"format": FORMAT, **asdict(self)}
        (folder / FILE).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Artifact:
        """Reads artifact.json from the folder that an archive was unpacked to.

        Raises:
            ArtifactError: missing, broken, or written in another format.
        """
        path = folder / FILE
        try:
            data = json.loads(path.read_text())
            found = data.pop("format")
            if found != FORMAT:
                raise ValueError(f"format {found!r}, this version reads {FORMAT}")
            data["input"] = InputSpec.from_dict(data["input"])
            data["files"] = {name: NetworkFile(**each) for name, each in data["files"].items()}
            data["labels"] = tuple(data["labels"])
            data["groups"] = {name: tuple(members) for name, members in data["groups"].items()}
            return cls(**data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError("cannot read the artifact", where=str(path), why=f"{type(error).__name__}: {error}",
                                remedy="build the archive again: `tscpu build`") from error
