"""A server that misbehaves as it is told. Run as a script:

misbehaving.py PORT [hang|crash|dies_on_request|deaf|family|crash_after N]

It serves /health, /v1/models and streamed chat completions. `family`: leaves children in sessions of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOW = sys.argv[2] if len(sys.argv) > 2 else "well"
CRASH_AFTER = int(sys.argv[3]) if len(sys.argv) > 3 else 0
served = 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        known = {
            "/health": {},
            "/v1/models": {"data": [{"id": "odd", "owned_by": "vllm"}]},
            "/version": {"version": "7"},
        }
        self._whole(200 if self.path in known else 404, known.get(self.path, {}))

    def do_POST(self) -> None:
        global served
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/reset":
            say("reset")
            self._whole(200, {})
            return
        if self.path == "/reset_badly":
            self._whole(500, {"error": {"message": "no cache here"}})
            return
        served += 1
        if HOW == "dies_on_request" or (HOW == "crash_after" and served > CRASH_AFTER):
            say("RuntimeError: out of memory in kernel 42")
            os._exit(3)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in ("one", "two", "three"):
            time.sleep(0.002)
            self._event({"choices": [{"index": 0, "delta": {"content": word}}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        self._event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, document: object) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def _whole(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    say(f"starting {HOW}")
    if HOW == "hang":
        time.sleep(600)
    if HOW == "crash":
        say("ValueError: no such model")
        sys.exit(7)
    if HOW == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if HOW == "family":
        child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
        subprocess.run([sys.executable, "-c", orphan], check=True)
        subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    if pids := os.environ.get("PIDS"):
        Path(pids).write_text(str(os.getpid()))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
