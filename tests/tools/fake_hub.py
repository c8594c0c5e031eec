"""A small model hub for tests, on loopback: the API listing and /resolve/ of one repository, and faults on demand.

Faults are keyed by file name and played in order, one for each request of that file (the listing's name is "api"):
  ("cut", n)            the connection ends after n bytes of the body
  ("status", s, headers)  a bare status
  ("corrupt",)          one byte of the body is flipped
  ("no_range",)         answers 200 with the whole file
  ("range_lie", total)  Content-Range names another total
  ("longer",)           a whole file of one byte more, without Content-Length
  ("hold", event)       waits for a threading.Event before the body's second half
After its faults a file is served right. `always` holds faults that never end.
"""
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sum(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class FakeHub:
    """files: name -> (content, is_lfs). cdn: another hub object to which /resolve/ of LFS files redirects."""

    def __init__(self, files, repository="org/model", token=None, cdn=None, revisions=("main",)):
        self.files, self.repository, self.token, self.cdn, self.revisions = files, repository, token, cdn, revisions
        self.faults, self.always, self.listing_patch = {}, {}, None
        self.requests = []  # (path, headers) of every request
        self.lock = threading.Lock()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def fault(self, name, *faults):
        self.faults.setdefault(name, []).extend(faults)

    def next_fault(self, name):
        with self.lock:
            if self.faults.get(name):
                return self.faults[name].pop(0)
            return self.always.get(name)

    def count(self, part):
        with self.lock:
            return sum(part in path for path, _ in self.requests)

    def listing(self):
        siblings = []
        for name, (content, lfs) in self.files.items():
            entry = {"rfilename": name, "size": len(content), "blobId": git_sum(content)}
            if lfs:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        answer = {"id": self.repository, "sha": COMMIT, "siblings": siblings}
        if self.listing_patch:
            self.listing_patch(answer)
        return answer

    # -- answers

    def answer(self, r):
        with self.lock:
            self.requests.append((r.path, {k.title(): v for k, v in r.headers.items()}))
        path = urllib.parse.urlsplit(r.path)
        if m := re.fullmatch(rf"/api/models/{self.repository}/revision/(.+)", path.path):
            fault = self.next_fault("api")
            if fault and fault[0] == "raw":
                return self.send(r, 200, fault[1], {"Content-Type": "application/json"})
            if fault and fault[0] == "status":
                return self.send(r, fault[1], b"busy", fault[2])
            if not self.allowed(r):
                return self.send(r, 401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
            if urllib.parse.unquote(m[1]) not in self.revisions:
                return self.send(r, 404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return self.send(r, 200, json.dumps(self.listing()).encode(), {"Content-Type": "application/json"})
        if m := re.fullmatch(rf"/{self.repository}/resolve/{COMMIT}/(.+)", path.path):
            name = urllib.parse.unquote(m[1])
            if name not in self.files:
                return self.send(r, 404, b"", {"X-Error-Code": "EntryNotFound"})
            if not self.allowed(r):
                return self.send(r, 401, b"", {})
            if self.cdn and self.files[name][1]:
                where = f"{self.cdn.url}/store/{urllib.parse.quote(name)}?signature=secret"
                return self.send(r, 302, b"", {"Location": where})
            return self.send_file(r, name)
        if path.path.startswith("/store/"):
            return self.send_file(r, urllib.parse.unquote(path.path[len("/store/"):]))
        self.send(r, 404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def allowed(self, r):
        return self.token is None or r.headers.get("Authorization") == f"Bearer {self.token}"

    def send(self, r, status, body, headers):
        r.send_response(status)
        for name, value in headers.items():
            r.send_header(name, value)
        r.send_header("Content-Length", str(len(body)))
        r.end_headers()
        r.wfile.write(body)

    def send_file(self, r, name):
        content = self.files[name][0]
        fault = self.next_fault(name) or ("",)
        if fault[0] == "status":
            return self.send(r, fault[1], b"", fault[2])
        begin, end, status = 0, len(content), 200
        if m := re.fullmatch(r"bytes=(\d+)-(\d+)", r.headers.get("Range", "")):
            begin, end, status = int(m[1]), min(int(m[2]) + 1, len(content)), 206
            if begin >= len(content):
                return self.send(r, 416, b"", {"Content-Range": f"bytes */{len(content)}"})
        if fault[0] == "no_range":
            begin, end, status = 0, len(content), 200
        body = content[begin:end]
        if fault[0] == "corrupt":
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault[0] == "longer":
            r.send_response(200)
            r.send_header("Connection", "close")
            r.end_headers()
            r.wfile.write(content + b"x")
            r.close_connection = True
            return
        total = fault[1] if fault[0] == "range_lie" else len(content)
        r.send_response(status)
        if status == 206:
            r.send_header("Content-Range", f"bytes {begin}-{end - 1}/{total}")
        r.send_header("Content-Length", str(len(body)))
        r.end_headers()
        if fault[0] == "cut":
            r.wfile.write(body[:fault[1]])
            r.wfile.flush()
            r.close_connection = True
            return
        if fault[0] == "hold":
            r.wfile.write(body[:len(body) // 2])
            r.wfile.flush()
            fault[1].wait(120)
            body = body[len(body) // 2:]
        r.wfile.write(body)
