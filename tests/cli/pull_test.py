"""`mettle pull` against a small hub on loopback that cuts, lies, corrupts, redirects, refuses and asks to wait."""
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
import fake_hub
import serving
from fake_hub import COMMIT, FakeHub

CHUNK = 16 << 20
TINY = os.path.join(HERE, "..", "..", "models", "mettle-tiny")


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


SMALL = {"config.json": (b'{"a": 1}', False), "empty.txt": (b"", False), "sub/weights.bin": (noise(100_000), True),
         "same.bin": (noise(100_000), True), "README (1) %41.md": (b"# name that needs quoting", False)}


def sum_of(hub, name):
    content, lfs = hub.files[name]
    return hashlib.sha256(content).hexdigest() if lfs else fake_hub.git_sum(content)


def wait_for(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen")
        time.sleep(0.02)


class Pull(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cache = os.path.join(self.folder.name, "hub")
        self.model = os.path.join(self.cache, "models--org--model")

    def environment(self, hub, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        return {**clean, "HF_ENDPOINT": hub.url, "HF_HOME": self.folder.name, **env}

    def pull(self, hub, *arguments, **env):
        return subprocess.run([serving.PROGRAM, "pull", "org/model", *arguments], capture_output=True, text=True,
                              timeout=300, env=self.environment(hub, **env))

    def good(self, hub, *arguments, **env):
        r = self.pull(hub, *arguments, **env)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r

    def bad(self, hub, *pieces, arguments=(), code=1, **env):
        r = self.pull(hub, *arguments, **env)
        self.assertEqual(r.returncode, code, r.stderr)
        self.assertEqual(r.stdout, "")
        for piece in pieces:
            self.assertIn(piece, r.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.model, "refs", "main")))
        return r

    def check_layout(self, hub, names=None):
        snapshot = os.path.join(self.model, "snapshots", COMMIT)
        found = {os.path.relpath(os.path.join(d, f), snapshot) for d, _, fs in os.walk(snapshot) for f in fs}
        self.assertEqual(found, set(names or hub.files))
        for name in found:
            path = os.path.join(snapshot, name)
            self.assertTrue(os.path.islink(path), name)
            up = "../" * (2 + name.count("/"))
            self.assertEqual(os.readlink(path), f"{up}blobs/{sum_of(hub, name)}")
            with open(path, "rb") as f:
                self.assertTrue(f.read() == hub.files[name][0], name)
        self.assertEqual(sorted(os.listdir(os.path.join(self.model, "blobs"))), sorted({sum_of(hub, n) for n in found}))

    def read_ref(self, name="main"):
        with open(os.path.join(self.model, "refs", name)) as f:
            return f.read()

    # -- what is written

    def test_layout_of_the_python_client(self):
        with FakeHub(SMALL) as hub:
            r = self.good(hub)
            snapshot = os.path.join(self.model, "snapshots", COMMIT)
            self.assertEqual(r.stdout, snapshot + "\n")
            self.check_layout(hub)
            self.assertEqual(self.read_ref(), COMMIT)
            locks = os.path.join(self.cache, ".locks", "models--org--model")
            self.assertEqual(sorted(os.listdir(locks)), sorted({sum_of(hub, n) + ".lock" for n in SMALL}))
            self.assertNotIn("\x1b", r.stderr)  # no bar where there is no terminal
            # Again: only the listing is asked for.
            before = len(hub.requests)
            again = self.good(hub)
            self.assertEqual(len(hub.requests), before + 1)
            self.assertIn(" 0 of them downloaded", again.stderr)

    def test_one_download_for_files_of_one_content(self):
        with FakeHub(SMALL) as hub:
            self.good(hub)
            self.assertEqual(hub.count("weights.bin") + hub.count("same.bin"), 1)

    def test_include_and_exclude(self):
        with FakeHub(SMALL) as hub:
            self.good(hub, "--include", "*.bin", "--include", "config.json", "--exclude", "same*")
            self.check_layout(hub, ["sub/weights.bin", "config.json"])
            self.good(hub, "--exclude", "sub/", "--include", "*.bin")
            self.check_layout(hub, ["sub/weights.bin", "config.json", "same.bin"])
            r = self.pull(hub, "--include", "*.nothing")
            self.assertEqual(r.returncode, 2)
            self.assertIn("leave none; there are config.json", r.stderr)

    def test_revision_with_a_slash(self):
        with FakeHub(SMALL, revisions=("main", "refs/pr/1")) as hub:
            self.good(hub, "--revision", "refs/pr/1")
            self.assertEqual(self.read_ref("refs/pr/1"), COMMIT)
            r = self.pull(hub, "--revision", "nope")
            self.assertEqual(r.returncode, 1)
            self.assertIn("there is no such revision", r.stderr)

    def test_a_pulled_model_is_found_by_its_name(self):
        files = {}
        for name in sorted(os.listdir(TINY)):
            with open(os.path.join(TINY, name), "rb") as f:
                files[name] = (f.read(), name.endswith(".safetensors"))
        with FakeHub(files) as hub:
            self.good(hub)
            r = subprocess.run([serving.PROGRAM, "inspect", "org/model", "--device", "sm90", "--json"], text=True,
                               capture_output=True, timeout=120, env=self.environment(hub))
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(json.loads(r.stdout)["missing"], [])

    # -- interrupted, at the same time

    def big(self):
        return {"config.json": (b"{}", False), "model.safetensors": (noise(3 * CHUNK + 12345), True)}

    def test_killed_in_the_middle_goes_on(self):
        with FakeHub(self.big()) as hub:
            gate = threading.Event()
            self.addCleanup(gate.set)
            hub.fault("model.safetensors", (), (), ("hold", gate), ("hold", gate))
            p = subprocess.Popen([serving.PROGRAM, "pull", "org/model", "--jobs", "1"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, env=self.environment(hub))
            blob = os.path.join(self.model, "blobs", sum_of(hub, "model.safetensors"))
            wait_for(lambda: hub.count("model.safetensors") == 3, "the third chunk")
            p.send_signal(signal.SIGKILL)
            p.wait()
            gate.set()
            self.assertTrue(os.path.exists(blob + ".mettle.incomplete"))
            self.assertFalse(os.path.exists(blob))
            self.assertFalse(os.path.exists(os.path.join(self.model, "refs", "main")))
            hub.faults.clear()
            before = hub.count("model.safetensors")
            r = self.good(hub)
            # Two of four chunks were there; the last one is the short one.
            self.assertEqual(hub.count("model.safetensors") - before, 2)
            self.assertLess(int(re.search(r"(\d+) of them downloaded", r.stderr)[1]), 2 * CHUNK)
            self.check_layout(hub)

    def test_goes_on_after_the_python_client(self):
        with FakeHub(self.big()) as hub:
            content = hub.files["model.safetensors"][0]
            blobs = os.path.join(self.model, "blobs")
            os.makedirs(blobs)
            with open(os.path.join(blobs, sum_of(hub, "model.safetensors") + ".incomplete"), "wb") as f:
                f.write(content[:2 * CHUNK + 5])
            self.good(hub)
            self.assertEqual(hub.count("model.safetensors"), 2)
            self.check_layout(hub)

    def test_books_that_do_not_fit_are_not_believed(self):
        with FakeHub(self.big()) as hub:
            blobs = os.path.join(self.model, "blobs")
            os.makedirs(blobs)
            stem = os.path.join(blobs, sum_of(hub, "model.safetensors"))
            for data, books in ((b"x" * 10, b"mettle chunks 1 99 16777216\n1111"),
                                (b"\0" * len(hub.files["model.safetensors"][0]), b"garbage"),
                                # Right in form, wrong in content: only the checksum tells.
                                (b"\0" * len(hub.files["model.safetensors"][0]),
                                 b"mettle chunks 1 %d %d\n1111" % (3 * CHUNK + 12345, CHUNK))):
                with open(stem + ".mettle.incomplete", "wb") as f:
                    f.write(data)
                with open(stem + ".mettle.chunks", "wb") as f:
                    f.write(books)
                self.good(hub)
                self.check_layout(hub)
                os.remove(stem)

    def test_two_at_once_share_the_work(self):
        with FakeHub(self.big()) as hub:
            start = [subprocess.Popen([serving.PROGRAM, "pull", "org/model", "--jobs", "2"], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, env=self.environment(hub)) for _ in range(2)]
            for p in start:
                out, err = p.communicate(timeout=300)
                self.assertEqual(p.returncode, 0, err)
                self.assertEqual(out, os.path.join(self.model, "snapshots", COMMIT) + "\n")
            self.assertEqual(hub.count("model.safetensors"), 4)  # no chunk twice
            self.check_layout(hub)

    def test_waits_for_the_lock_of_the_python_client(self):
        with FakeHub(SMALL) as hub:
            locks = os.path.join(self.cache, ".locks", "models--org--model")
            os.makedirs(locks)
            with open(os.path.join(locks, sum_of(hub, "config.json") + ".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                p = subprocess.Popen([serving.PROGRAM, "pull", "org/model"], stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True, env=self.environment(hub))
                self.assertIn("config.json: another process downloads it", p.stderr.readline())
                wait_for(lambda: hub.count("README") == 1 and hub.count("weights.bin") + hub.count("same.bin") == 1,
                         "the other files")
                self.assertIsNone(p.poll())
                self.assertEqual(hub.count("/config.json"), 0)
                fcntl.flock(lock, fcntl.LOCK_UN)
                _, err = p.communicate(timeout=300)
                self.assertEqual(p.returncode, 0, err)
            self.check_layout(hub)

    # -- what passes

    def test_cuts_errors_and_limits_are_waited_out(self):
        with FakeHub(SMALL) as hub:
            hub.fault("api", ("status", 503, {"Retry-After": "0"}), ("status", 429, {"Retry-After": "0"}))
            hub.fault("sub/weights.bin", ("cut", 1000), ("status", 500, {}), ("cut", 0), ("status", 408, {}))
            r = self.good(hub, "--exclude", "same.bin")
            self.assertIn("status 503; again in 0.0 s", r.stderr)
            self.assertIn("status 429; again in 0.0 s", r.stderr)
            self.check_layout(hub, set(SMALL) - {"same.bin"})
            ranges = [h["Range"] for p, h in hub.requests if "weights.bin" in p]
            self.assertEqual(ranges, ["bytes=0-99999"] + ["bytes=1000-99999"] * 4)  # what came is not asked for again

    def test_failures_in_a_row_end_it(self):
        with FakeHub(SMALL) as hub:
            hub.always["api"] = ("status", 503, {"Retry-After": "0"})
            self.bad(hub, "8 failures in a row", "status 503")
            self.assertEqual(hub.count("/api/"), 8)
            hub.always["api"] = ("status", 429, {"Retry-After": "86400"})
            self.bad(hub, "asks to wait for 86400 s")

    def test_a_server_without_ranges(self):
        with FakeHub(self.big()) as hub:
            hub.always["model.safetensors"] = ("no_range",)
            self.good(hub)
            self.check_layout(hub)
            # Each connection learns it once at most; the whole file comes once.
            self.assertLessEqual(hub.count("model.safetensors"), 5)

    # -- what does not pass

    def test_checksums(self):
        with FakeHub(SMALL) as hub:
            for name, kind in (("sub/weights.bin", "sha256"), ("config.json", "git blob sha1")):
                hub.fault(name, ("corrupt",))
                r = self.good(hub, "--include", name)
                self.assertIn(f"{name}: {kind} must be {sum_of(hub, name)}, is ", r.stderr)
                self.assertIn("downloading it again", r.stderr)
                os.remove(os.path.join(self.model, "blobs", sum_of(hub, name)))
                os.remove(os.path.join(self.model, "refs", "main"))
                hub.always[name] = ("corrupt",)
                self.bad(hub, "twice; what came was deleted", arguments=["--include", name])
                self.assertEqual([f for f in os.listdir(os.path.join(self.model, "blobs")) if sum_of(hub, name) in f], [])

    def test_sizes_that_lie(self):
        for fault in (("range_lie", 99), ("range_lie", 10 ** 15), ("longer",)):
            with FakeHub(SMALL) as hub:
                hub.always["sub/weights.bin"] = fault
                self.bad(hub, "sub/weights.bin: the hub says 100000 bytes", arguments=["--exclude", "same.bin"])

        def larger(listing):
            for entry in listing["siblings"]:
                if "lfs" in entry:
                    entry["lfs"]["size"] += 10
        with FakeHub(SMALL) as hub:
            hub.listing_patch = larger
            self.bad(hub, "the hub says 100010 bytes, the server has 100000")

    def test_names_sums_and_numbers_of_the_listing(self):
        def named(name):
            return lambda listing: listing["siblings"][0].update(rfilename=name)

        def changed(**fields):
            return lambda listing: listing["siblings"][0].update(fields)
        cases = [(named(n), piece) for n, piece in
                 (("../evil", '".."'), ("/etc/passwd", "absolute"), ("a/../../b", '".."'), ("a//b", "empty part"), ("", "empty"),
                  ("a\nb", "control"), ("a\\b", "backslash"), ("x" * 300, "300 bytes"), (".", '"."'),
                  ("empty.txt", "twice"), ("sub", "is a file and a folder"), ("sub/weights.bin/x", "is a file and a folder"),
                  (7, "empty"))]
        cases += [(changed(size=-1), "size"), (changed(size=2 ** 60), "size"), (changed(size=1.5), "size"),
                  (changed(blobId="../../x"), "git blob id"), (changed(blobId=None), "git blob id"),
                  (changed(lfs={"sha256": "A" * 64, "size": 1}), "sha256"),
                  (lambda x: x.update(sha="main"), "commit"), (lambda x: x.update(sha="../" * 13 + "a"), "commit"),
                  (lambda x: x.update(siblings=[]), "list of files"), (lambda x: x.update(siblings=None), "list of files")]
        with FakeHub(SMALL) as hub:
            for patch, piece in cases:
                hub.listing_patch = patch
                self.bad(hub, piece)
                self.assertEqual(os.listdir(self.folder.name), [])  # nothing was made
            for raw, piece in ((b"<html>", "must be JSON"), (b"[" * 100_000, "nested deeper"), (b"{}", "commit")):
                hub.fault("api", ("raw", raw))
                self.bad(hub, piece)

    def test_refusals(self):
        with FakeHub(SMALL, token="secret-token") as hub:
            self.bad(hub, "status 401", "Invalid credentials", "no token is set: HF_TOKEN")
            r = self.bad(hub, "the token that is set was not accepted", HF_TOKEN="wrong-one")
            self.assertNotIn("wrong-one", r.stderr)
            with open(os.path.join(self.folder.name, "token"), "w") as f:
                f.write("secret-token\n")
            self.good(hub)
        with FakeHub(SMALL) as hub:
            hub.fault("api", ("status", 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}))
            self.assertIn("gated: ask for access", self.pull(hub).stderr)
            r = subprocess.run([serving.PROGRAM, "pull", "org/absent"], capture_output=True, text=True, timeout=60,
                               env=self.environment(hub))
            self.assertEqual(r.returncode, 1)
            self.assertIn("Repository not found", r.stderr)

    def test_the_token_stays_with_its_host(self):
        with FakeHub(SMALL) as cdn, FakeHub(SMALL, token="secret-token", cdn=cdn) as hub:
            r = self.good(hub, HF_TOKEN="secret-token")
            self.check_layout(hub)
            self.assertEqual(len(cdn.requests), 1)
            self.assertNotIn("Authorization", cdn.requests[0][1])
            self.assertTrue(all(h.get("Authorization") == "Bearer secret-token" for _, h in hub.requests))
            self.assertNotIn("secret", r.stdout + r.stderr)

    def test_an_address_that_ran_out_is_asked_for_again(self):
        files = self.big()
        with FakeHub(files) as cdn, FakeHub(files, cdn=cdn) as hub:
            cdn.fault("model.safetensors", (), ("status", 403, {}))
            self.good(hub, "--jobs", "1")
            self.check_layout(hub)
            self.assertEqual(hub.count("resolve"), 3)  # config.json, the file, the file again

    def test_redirects_that_nobody_may_follow(self):
        with FakeHub(SMALL) as hub:
            for where, piece in (("ftp://127.0.0.1/x", "no http or https URL"), ("file:///etc/passwd", "no http or https URL"),
                                 ("http://user@127.0.0.1/x", "no http or https URL"), (f"/org/model/resolve/{COMMIT}/config.json", "more than 8 times")):
                hub.always["config.json"] = ("status", 302, {"Location": where})
                self.bad(hub, piece, arguments=["--include", "config.json"])

    def test_bad_input(self):
        with FakeHub(SMALL) as hub:
            for arguments, env, piece in (
                    (["--jobs", "0"], {}, "--jobs"), (["--jobs", "65"], {}, "--jobs"), (["--revision", "../x"], {}, "--revision"),
                    ([], {"HF_ENDPOINT": "nonsense"}, "HF_ENDPOINT"), ([], {"HF_ENDPOINT": "http://u:p@h"}, "HF_ENDPOINT"),
                    ([], {"HF_TOKEN": "a\r\nb: c"}, "token"), ([], {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE")):
                self.bad(hub, piece, arguments=arguments, code=2, **env)
            for name in ("model", "../x/y", "a/b/c", "", "a/.."):
                r = subprocess.run([serving.PROGRAM, "pull", name], capture_output=True, text=True, timeout=60,
                                   env=self.environment(hub))
                self.assertEqual(r.returncode, 2, name)
            self.assertEqual(hub.requests, [])
        with FakeHub(SMALL) as hub:  # a full or read-only place
            r = self.pull(hub, HF_HUB_CACHE="/proc/nowhere")
            self.assertEqual(r.returncode, 1)
            self.assertIn("cannot make the folder", r.stderr)

    def test_more_than_the_disk_holds(self):
        def huge(listing):
            for entry in listing["siblings"]:
                if "lfs" in entry:
                    entry["lfs"]["size"] = 1 << 44
                    entry["lfs"]["sha256"] = hashlib.sha256(entry["rfilename"].encode()).hexdigest()
        with FakeHub(SMALL) as hub:
            hub.listing_patch = huge
            self.bad(hub, "GB free for what is to come")
            self.assertEqual(hub.count("resolve"), 0)

    def test_one_content_needs_its_space_once(self):
        size = shutil.disk_usage(self.folder.name).free * 6 // 10  # twice as much is not there

        def alike(listing):
            for entry in listing["siblings"]:
                if "lfs" in entry:
                    entry["lfs"] = {"sha256": hashlib.sha256(b"x").hexdigest(), "size": size, "pointerSize": 130}
        with FakeHub(SMALL) as hub:
            hub.listing_patch = alike
            for name in ("sub/weights.bin", "same.bin"):
                hub.always[name] = ("status", 404, {})
            r = self.bad(hub, "status 404")
            self.assertNotIn("GB free", r.stderr)


if __name__ == "__main__":
    unittest.main()
