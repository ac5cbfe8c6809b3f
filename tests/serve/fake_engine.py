"""A stand-in for the engine: prints, serves, dies, ignores SIGTERM or leaves grandchildren, as told.

python fake_engine.py PORT BEHAVIOUR [PID_FILE]
"""

import http.server
import os
import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


def main(port: int, behaviour: str, pid_file: str) -> None:
    print("INFO loading weights", flush=True)
    if behaviour == "dies":
        print("ValueError: When using LoRA, vocab size must be <= 258048", flush=True)
        sys.exit(3)
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hangs":
        time.sleep(600)
    if behaviour in ("family", "deaf-family"):
        write_family(pid_file)
    if behaviour.startswith("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("INFO Using 'HUMMING' NvFp4 MoE backend out of potential backends: ['MARLIN', 'HUMMING'].")
    print("INFO Using HummingExperts MoE backend")
    print("INFO Available KV cache memory: 2.5 GiB")
    print("INFO GPU KV cache size: 1,100,145 tokens, Maximum concurrency 3x", flush=True)
    server = http.server.HTTPServer(("127.0.0.1", port), Health)
    if behaviour.endswith("shares"):
        block = shared_memory.SharedMemory(create=True, size=16)
        Path(pid_file).write_text(f"{os.getpid()} {block.name}")
    if behaviour == "lingers":
        signal.signal(signal.SIGTERM, lambda *_: linger(server))
    server.serve_forever()


def linger(server: http.server.HTTPServer) -> None:
    """Answer nobody any more, and take long to end."""
    server.server_close()
    time.sleep(600)


def write_family(pid_file: str) -> None:
    """A child in this group and a grandchild in a session of its own, both deaf to SIGTERM."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", deaf])
    orphan = f"""
import subprocess, sys
quiet = subprocess.DEVNULL
command = [sys.executable, "-c", {deaf!r}]
print(subprocess.Popen(command, start_new_session=True, stdout=quiet, stderr=quiet).pid)
"""
    told = subprocess.run([sys.executable, "-c", orphan], check=True, capture_output=True, text=True)
    Path(pid_file).write_text(f"{os.getpid()} {child.pid} {told.stdout}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
