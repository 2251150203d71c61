"""A program that behaves as its configuration says: the command line's children are tested with it.

`address` is written to `address_file`; then `end` decides: wait for SIGTERM, ignore it, or die in one way or another.
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


def main() -> int:
    config = json.loads(Path(sys.argv[2]).read_text())
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN if config["end"] == "ignore SIGTERM" else lambda *_: sys.exit(config.get("code", 0))
    )
    print("the stand-in starts", flush=True)
    if "ready_after" in config:
        config["address"] = {"http": f"127.0.0.1:{serve_ready(config['ready_after'])}", "grpc": "router:1"}
    if "address" in config:
        tell(Path(config["address_file"]), config["address"])
    return ENDS[config["end"]](config)


def tell(path: Path, address: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(address))
    partial.rename(path)


def serve_ready(num_refusals: int) -> int:
    """Answer /ready with 503 so many times, then with 200; return the port."""

    class Ready(BaseHTTPRequestHandler):
        refusals = num_refusals

        def do_GET(self) -> None:
            Ready.refusals -= 1
            self.send_response(503 if Ready.refusals >= 0 else 200)
            self.end_headers()
            node = {"node": None, "address": "decode-0:1", "ready": False, "reason": "the model loads"}
            self.wfile.write(json.dumps({"nodes": [node] if Ready.refusals > 0 else []}).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Ready)
    Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def wait(config: dict[str, Any]) -> int:
    while True:
        time.sleep(60)


def config_error(config: dict[str, Any]) -> int:
    print("stand_in: port 80 is taken", file=sys.stderr)
    return 2


def crash(config: dict[str, Any]) -> int:
    raise ZeroDivisionError("a bug")


def killed(config: dict[str, Any]) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


ENDS = {"wait": wait, "ignore SIGTERM": wait, "config error": config_error, "crash": crash, "killed": killed}

if __name__ == "__main__":
    sys.exit(main())
