"""A small process tree that behaves like TorchServe where the supervisor looks: parent, JVM, workers, management API.

Run as `stand_in.py parent FOLDER`, with FOLDER/stand_in.json for its settings: management, inference (ports), model,
workers, and mode: "good"; "raises" (a worker that fails to load, again and again); "hangs" (one that never loads).
Everything is standard library, since Python has to start three times a test.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAST = ["-I", "-S"]  # a Python that starts in a few milliseconds


def parent(folder: Path) -> None:
    """Like torchserve's: starts the JVM, waits for it, passes nothing on and exits 0 whatever happened."""
    java = folder / "java"
    subprocess.Popen([str(java), *FAST, __file__, "jvm", str(folder), "org.pytorch.serve.ModelServer"]).wait()


class Worker:
    """The JVM's view of one worker: started, started again when it ends, and spoken to over its socket."""

    def __init__(self, folder: Path, number: int, model: str) -> None:
        self.folder, self.id, self.model = folder, str(number), model
        self.pid, self.status, self.lock = -1, "UNLOADING", threading.Lock()
        self.connection: socket.socket | None = None
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            process = subprocess.Popen([sys.executable, *FAST, __file__, "worker", str(self.folder), self.id],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.pid = process.pid
            assert process.stdout is not None
            for line in process.stdout:
                self.log(line.rstrip("\n"))
                if line.startswith("Torch worker started"):
                    self.connection = socket.socket(socket.AF_UNIX)
                    self.connection.connect(str(self.folder / f".ts.sock.{self.id}"))
                    self.status = "READY"
            process.wait()
            # TorchServe waits a second at least; failing starts come faster here, to keep the tests short
            pause = 1.0 if self.status == "READY" else 0.15
            self.status = "UNLOADING"
            time.sleep(pause)

    def log(self, text: str) -> None:
        print(f"2026-01-31T12:00:00,000 [INFO ] W-{self.id}-{self.model}_1.0-stdout MODEL_LOG - {text}", flush=True)

    def predict(self, seconds: float) -> int:
        with self.lock:
            assert self.connection is not None
            try:
                self.connection.sendall(b"I" + struct.pack("d", seconds))
                return 200 if self.connection.recv(1) else 500
            except OSError:
                return 500


def jvm(folder: Path) -> None:
    settings = json.loads((folder / "stand_in.json").read_text())
    model = settings["model"]
    workers = [Worker(folder, 9000 + number, model) for number in range(settings["workers"])]

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = [{"id": each.id, "pid": each.pid, "status": each.status, "memoryUsage": 0} for each in workers]
            self.answer(200, [{"modelName": model, "modelVersion": "1.0", "minWorkers": len(workers),
                               "maxWorkers": len(workers), "workers": listed,
                               "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0}}])

        def do_POST(self) -> None:
            seconds = float(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(workers[0].predict(seconds), "done")

        def answer(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    for port in (settings["management"], settings["inference"]):
        server = ThreadingHTTPServer(("127.0.0.1", port), Api)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop(number: int, frame: object) -> None:
        os._exit(143)  # at once, so that what it leaves behind is the supervisor's to end

    signal.signal(signal.SIGTERM, stop)
    while True:
        signal.pause()


def worker(folder: Path, number: str) -> None:
    mode = json.loads((folder / "stand_in.json").read_text())["mode"]
    if mode == "raises":
        load()
    while mode == "hangs":
        time.sleep(60)
    if os.fork() == 0:  # a helper that leaves the session and its parent, and wants to live on
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sys.stdout.close()
            os.closerange(0, 3)
            time.sleep(60)
        os._exit(0)
    os.wait()
    path = folder / f".ts.sock.{number}"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        print("Torch worker started.", flush=True)
        connection, _ = listening.accept()
    while connection.recv(1):
        (seconds,) = struct.unpack("d", connection.recv(8))
        time.sleep(seconds)
        connection.sendall(b"k")


def load() -> None:
    raise ValueError("the weights do not fit the network")


if __name__ == "__main__":
    role, where = sys.argv[1], Path(sys.argv[2])
    if role == "worker":
        worker(where, sys.argv[3])
    else:
        {"parent": parent, "jvm": jvm}[role](where)
