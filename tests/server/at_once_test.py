"""Servers started at once on one empty cache: each gets ready and answers, each ends cleanly, and the cache holds every
verdict once, in one whole file, with nothing beside it.

`at_once_test.py PROGRAM [--servers N] [--rounds N]`: each server proves everything, 5 s of a core, so there are few of them
by default; `--servers 16 --rounds 20` is the whole demand."""
import concurrent.futures
import json
import os
import shutil
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving


def option(flag, default):
    if flag not in sys.argv:
        return default
    at = sys.argv.index(flag)
    value = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return value


SERVERS, ROUNDS = option("--servers", 5), option("--rounds", 1)


class Readers:
    """Reads the files of a folder over and over while servers write there: each is whole at any moment."""

    def __init__(self, folder):
        self.folder, self.broken, self.seen = folder, [], set()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.read, daemon=True)

    def read(self):
        while not self.stop.is_set():
            for path in (os.path.join(d, name) for d, _, names in os.walk(self.folder) for name in names):
                self.look_at(path)
            self.stop.wait(0.02)

    def look_at(self, path):
        try:
            s = os.stat(path)
            version = (path, s.st_ino, s.st_size, s.st_mtime_ns)
            if version in self.seen or not path.endswith(".json"):
                return
            whole = serving.is_whole(path)
        except FileNotFoundError:  # another one came in its place
            return
        self.seen.add(version)
        if not whole:
            self.broken.append(path)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


class AtOnce(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mettle-at-once-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start_all(self, env):
        """All at the same moment; every one that came up is stopped at the end of the test, whatever happens."""
        def start():
            server = serving.Server("--threads", "1", env=env)
            self.addCleanup(server.stop)
            # Who says ready has proved, loaded and answered before.
            self.assertIn("canary: ", server.errors())
            return server

        with concurrent.futures.ThreadPoolExecutor(SERVERS) as pool:
            return [f.result() for f in [pool.submit(start) for _ in range(SERVERS)]]

    def check_cache(self, cache):
        files = [os.path.join(d, name) for d, _, names in os.walk(cache) for name in names]
        verdicts = [f for f in files if os.path.basename(os.path.dirname(f)) == "verdicts"]
        self.assertEqual(len(verdicts), 1, files)
        for path in files:
            self.assertTrue(path.endswith(".json"), f"{path} was left behind")
            self.assertTrue(serving.is_whole(path), f"{path} is no whole file")
        with open(verdicts[0]) as f:
            entries = json.loads(f.read().partition("\n")[2])["entries"]
        keys = [(e["op"], e["problem"], e["backend"], e["tactic"], e["numerics"]) for e in entries]
        self.assertEqual(len(keys), len(set(keys)), "a verdict is kept twice")
        self.assertEqual({e["verdict"] for e in entries if e["backend"] == "reference"}, {"OK"})
        return keys

    def test_all_get_ready_on_an_empty_cache(self):
        for i in range(ROUNDS):
            with self.subTest(round=i):
                cache, temp = (os.path.join(self.folder, f"{name}-{i}") for name in ("cache", "temp"))
                os.mkdir(cache)
                os.mkdir(temp)
                env = {"XDG_CACHE_HOME": cache, "TMPDIR": temp}
                with Readers(cache) as readers:
                    servers = self.start_all(env)
                self.assertEqual(readers.broken, [], "what a reader saw there was no whole file")
                self.assertEqual(len({s.port for s in servers}), SERVERS)
                for server in servers:
                    self.assertEqual(server.request("GET", "/health/ready")[0], 200)
                status, _, body = servers[i % SERVERS].chat("How much is 757 plus 95?", temperature=0,
                                                            chat_template_kwargs={"enable_thinking": False})
                self.assertEqual(status, 200, body)
                self.assertIn("852", json.loads(body)["choices"][0]["message"]["content"])
                for server in servers:
                    server.process.terminate()
                for server in servers:
                    self.assertEqual(server.process.wait(120), 0, server.errors())
                    self.assertNotIn("not kept", server.errors())
                    self.assertNotIn("failed its proof", server.errors())
                self.assertEqual(os.listdir(temp), [])
                self.assertGreater(len(self.check_cache(cache)), 20)
                # Nothing is left to prove.
                out = os.path.join(temp, "out.json")
                r = serving.run_program("prove", "--threads", "1", "--json", out, env=env)
                self.assertEqual(r.returncode, 0, r.stderr)
                with open(out) as f:
                    results = json.load(f)["results"]
                self.assertEqual([e for e in results if e["verdict"] == "OK" and not e["cached"]], [])


if __name__ == "__main__":
    serving.main()
