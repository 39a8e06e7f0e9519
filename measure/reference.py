"""The answers that servers should give, from the eager fp32 network in one process.

    python -m measure.reference FOLDER_OF_EAGER_ARCHIVE BODY…

Prints one JSON object: body's path → answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from measure.pipeline import Pipeline


def main() -> None:
    pipeline = Pipeline(Path(sys.argv[1]))
    print(json.dumps({path: pipeline(Path(path).read_bytes()) for path in sys.argv[2:]}))


if __name__ == "__main__":
    main()
