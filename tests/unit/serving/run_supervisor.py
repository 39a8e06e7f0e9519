"""Runs a Supervisor over the stand-in, in a process of its own: it takes over signals and all children."""

import json
import os
import sys
from functools import partial
from pathlib import Path

from configs.plan import read_plan
from serving.supervisor import Supervisor

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "stand_in.json").read_text())
    stand_in = str(Path(__file__).with_name("stand_in.py"))
    supervisor = Supervisor([sys.executable, "-I", "-S", stand_in, "parent", str(folder)], dict(os.environ),
                            read_plan(folder / "plan.json"), settings["inference"], settings["management"],
                            settings["health"], settings["notice"], settings["grace"], settings["startup"], folder,
                            partial(print, "tscpu:", flush=True), health_address="127.0.0.1")
    sys.exit(supervisor.run())
