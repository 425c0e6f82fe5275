"""A network on loopback between a client and a real server, which can be made to misbehave."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What S3 answers, with a message that repeats what it was sent, as some servers do.
REFUSAL = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>%s</Code><Message>key %s token %s</Message><RequestId>1</RequestId></Error>"""


class Network:
    """Forwards to `port`; `rule(method, path)` says how each request fares.

    None: as it should. A number: that status instead, and the server never sees the request.
    `late <number>`: the server acts, but that status comes back. `drop`: the connection closes.
    `short`: the answer's body loses its second half, with the length to match. `cut`: the same
    without. `short write`: the request's body arrives as half.
    """

    def __init__(self, port):
        self.port, self.rule, self.secrets = port, lambda method, path: None, (b"", b"")
        self.seen = Counter()
        self._threads = []  # one for each connection
        self._lock = threading.Lock()
        network = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                network.handle(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = forward  # noqa: N815

            def log_message(self, *words):
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

            def process_request(self, connection, address):
                work = threading.Thread(
                    target=self.process_request_thread, args=(connection, address), daemon=True
                )
                network._threads.append(work)
                work.start()

            def handle_error(self, request, address):
                pass  # a client that gave up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def drain(self):
        """After all clients are gone: close when what they asked for has been dealt with."""
        self.close()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def puts(self, text=""):
        """How many writes of objects whose name has `text` were asked for."""
        return sum(n for (method, path), n in self.seen.items() if method == "PUT" and text in path)

    def gets(self, text=""):
        return sum(n for (method, path), n in self.seen.items() if method == "GET" and text in path)

    def handle(self, request):
        method, path = request.command, request.path
        body = self._body(request)
        with self._lock:
            self.seen[method, path.partition("?")[0]] += 1
        fate = self.rule(method, path)
        if fate == "drop":
            request.close_connection = True
            return
        if isinstance(fate, int):
            self._refuse(request, fate)
            return
        if fate == "short write":
            body = body[: len(body) // 2]
        status, headers, answer = self._ask(request, method, path, body)
        if isinstance(fate, str) and fate.startswith("late"):
            self._refuse(request, int(fate.split()[1]))
            return
        length = len(answer)
        if fate in ("short", "cut") and method == "GET":
            answer = answer[: length // 2]
        request.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(name, value)
        if method == "HEAD":
            length = next((v for n, v in headers if n.lower() == "content-length"), 0)
        request.send_header("Content-Length", str(len(answer) if fate == "short" else length))
        request.end_headers()
        request.wfile.write(answer)
        if fate == "cut":
            request.close_connection = True

    def _ask(self, request, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {
                name: value
                for name, value in request.headers.items()
                if name.lower() not in ("content-length", "transfer-encoding", "expect")
            }
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _body(self, request):
        if request.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(request.rfile.readline().split(b";")[0], 16):
                pieces.append(request.rfile.read(size))
                request.rfile.readline()
            request.rfile.readline()
            return b"".join(pieces)
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))

    def _refuse(self, request, status):
        code = {403: b"AccessDenied", 500: b"InternalError", 503: b"SlowDown"}[status]
        answer = REFUSAL % (code, *self.secrets)
        request.send_response_only(status)
        request.send_header("Content-Type", "application/xml")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(answer)


def wait_until(true, seconds=30):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
