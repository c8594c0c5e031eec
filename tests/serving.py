"""What the whole-program tests share: a running `mettle serve`, its metrics, raw HTTP. Standard library only.

Every test script takes the program as its first argument: tests/server/openai_client_test.py build/mettle
"""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build/mettle"
READY_SECONDS = 300
# A shell without job control starts `scripts/test &` with SIGINT ignored, and who is started from there inherits it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Who is told to end (a runner's time limit) cleans up as after Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)


class Server:
    """`mettle serve` with its own cache folder (kept between servers of one script, so that proofs are done once)."""

    cache = tempfile.mkdtemp(prefix="mettle-test-cache-")
    processes = []  # all that were started

    def __init__(self, *flags, env=None, model=None, **popen):
        self.log = tempfile.TemporaryFile(mode="w+")
        argv = [PROGRAM, "serve"] + ([model] if model else []) + ["--port", "0", *flags]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, "XDG_CACHE_HOME": Server.cache, **(env or {})}, **popen)
        Server.processes.append(self.process)
        timer = threading.Timer(READY_SECONDS, self.process.kill)
        timer.daemon = True
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        match = re.fullmatch(r"ready http://127\.0\.0\.1:(\d+)\n", line)
        if not match:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no ready line but {line!r}; standard error:\n{self.errors()}")
        self.port = int(match.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def errors(self):
        # Not by seek and read: the server writes where this file's position is, it is one for both.
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode(errors="replace")

    def wait_for_words(self, words, seconds=60):
        """Returns when the server has said so on standard error."""
        end = time.monotonic() + seconds
        while words not in self.errors():
            if not self.alive() or time.monotonic() > end:
                raise AssertionError(f"no {words!r}; standard error:\n{self.errors()}")
            time.sleep(0.01)

    def request(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, body bytes) of one request on its own connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            if isinstance(body, str):
                body = body.encode()
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def chat(self, content, **fields):
        return self.request("POST", "/v1/chat/completions",
                            {"messages": [{"role": "user", "content": content}], **fields})

    def metrics(self):
        """Name (with labels) -> value."""
        text = self.request("GET", "/metrics")[2].decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in text.splitlines() if line and not line.startswith("#")}

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def wait_idle(self, seconds=60):
        """Metrics once nothing runs or waits."""
        finished = threading.Event()
        for _ in range(int(seconds / 0.05)):
            m = self.metrics()
            if m["mettle_requests_running"] == 0 and m["mettle_requests_waiting"] == 0:
                return m
            finished.wait(0.05)
        raise AssertionError(f"still running after {seconds} s: {m}")

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """SIGTERM; the exit code."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("no end after SIGTERM; standard error:\n" + self.errors())
        finally:
            self.process.stdout.close()


def clean_up(owner=os.getpid()):
    """At the end of the script, however it ends: no server that still runs, no folder."""
    if os.getpid() != owner:  # a child that was forked
        return
    for process in Server.processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    for _ in range(100):  # children of a killed server may still write as they end
        shutil.rmtree(Server.cache, ignore_errors=True)
        if not os.path.exists(Server.cache):
            return
        time.sleep(0.05)


atexit.register(clean_up)


def run_program(*arguments, input=None, env=None, timeout=300):
    """A finished run of the program: returncode, stdout, stderr as text."""
    return subprocess.run([PROGRAM, *arguments], input=input, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, "XDG_CACHE_HOME": Server.cache, **(env or {})})


def is_whole(path):
    """Whether a file of the cache is what a writer meant: a header with the checksum of the rest."""
    with open(path, "rb") as f:
        head, _, body = f.read().partition(b"\n")
    match = re.fullmatch(rb"mettle-[a-z]+ \d+ ([0-9a-f]{16})", head)
    if match is None:
        return False
    h = 0xCBF29CE484222325
    for byte in body:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return int(match.group(1), 16) == h


def ignores(pid, number):
    with open(f"/proc/{pid}/status") as f:
        return bool(int(re.search(r"^SigIgn:\s*([0-9a-f]+)$", f.read(), re.M).group(1), 16) & 1 << number - 1)


def children_of(pid):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[1]) == pid:
                        found.append(int(entry))
            except OSError:
                pass
    return found


def ends(pid, seconds=20):
    """Whether a process is gone (or only waits to be reaped) within that time."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.05)):
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        pause.wait(0.05)
    return False


def main():
    unittest.main(verbosity=1, warnings="ignore")
