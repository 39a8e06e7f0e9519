"""Python files of the user's own, imported by their path. Light: whoever imports this brings no torch with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def import_file(path: Path, name: str) -> ModuleType:
    """Runs a Python file as the module `name`, which is not entered in sys.modules.

    Raises:
        FileNotFoundError: there is no such file; and whatever the file itself raises.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file has both, even one that is not there
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
