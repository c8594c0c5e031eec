"""`mettle tune` and `mettle bench kernels`: budget, resuming after a kill, files out and in, foreign and hostile files."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

BUCKETS = [1, 4, 16, 32, 64, 256, 512]
TIME = ["backend", "tactic", "us", "noise", "samples", "gb_per_s", "gflop_per_s", "of_roof", "limit"]
MAGIC = b"mettle-tuning 1 "


def with_checksum(everything):
    """A tuning file with this content and the checksum that goes with it."""
    body = json.dumps(everything).encode()
    h = 0xCBF29CE484222325
    for byte in body:
        h = (h ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return MAGIC + b"%016x\n" % h + body


def content(path):
    with open(path, "rb") as f:
        return json.loads(f.read().split(b"\n", 1)[1])


class Tune(unittest.TestCase):
    cache = tempfile.TemporaryDirectory(prefix="mettle-tune-test-")  # proofs are done once

    @classmethod
    def tearDownClass(cls):
        cls.cache.cleanup()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        # Each test has the proofs of all and tunings of its own.
        verdicts = os.path.join(self.cache.name, "verdicts")
        os.makedirs(verdicts, exist_ok=True)
        os.makedirs(os.path.join(self.folder.name, "mettle"))
        os.symlink(verdicts, os.path.join(self.folder.name, "mettle", "verdicts"))

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def command(self, *arguments):
        return [serving.PROGRAM, *arguments]

    def environment(self, **env):
        return {**os.environ, "XDG_CACHE_HOME": self.folder.name, **env}

    def run_mettle(self, *arguments, **env):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=600, env=self.environment(**env))

    def tune(self, *arguments, **env):
        return self.run_mettle("tune", *arguments, **env)

    def json(self, *arguments, what=("tune",), **env):
        r = self.run_mettle(*what, "--json", *arguments, **env)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout), r.stderr

    def tunings(self):
        folder = self.path("mettle/tunings")
        return [os.path.join(folder, f) for f in os.listdir(folder)] if os.path.isdir(folder) else []

    def test_usage(self):
        for what in (["tune"], ["bench", "kernels"]):
            r = self.run_mettle(*what, "--help")
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertIn("Examples:", r.stdout)
            for arguments, code, says in ((["--nonsense"], 2, "--nonsense"), (["--budget", "0"], 2, "--budget"),
                                          (["--budget", "nan"], 2, "--budget"), (["--budget", "1e99"], 2, "--budget"),
                                          (["--op", "gelu"], 2, "gelu"), (["--threads", "-1"], 2, "--threads"),
                                          (["--device", "tpu"], 2, "tpu"), (["/no/such/model"], 1, "/no/such/model"),
                                          ([""], 2, "must not be empty"), (["a", "b"], 2, "b")):
                r = self.run_mettle(*what, *arguments)
                self.assertEqual(r.returncode, code, (what, arguments, r))
                self.assertIn(says, r.stderr)
        for arguments, code, says in ((["--out", ""], 2, "--out"), (["--out", "/no/such/folder/file"], 1, "/no/such/folder"),
                                      (["--out", "/dev/stdout"], 2, "must be a file"), (["--from", "/no/such/file"], 1, "/no/such/file")):
            r = self.tune(*arguments)
            self.assertEqual(r.returncode, code, (arguments, r))
            self.assertIn(says, r.stderr)
        self.assertEqual(self.run_mettle("bench").returncode, 2)
        r = self.run_mettle("bench", "everything")
        self.assertEqual(r.returncode, 2)
        self.assertIn("everything", r.stderr)
        self.assertEqual(self.tunings(), [])

    def test_figures_and_the_second_run(self):
        out = self.path("file")
        report, errors = self.json("--op", "linear", "--budget", "60", "--out", out)
        self.assertEqual((report["wanted"], report["done"], report["from_earlier_runs"]), (7, 7, 0))
        self.assertFalse(report["out_of_time"])
        self.assertIn("7 of 7 buckets written", errors)
        self.assertEqual([u["rows"] for u in report["units"]], BUCKETS)
        reads = report["ceiling"]["reads"]
        self.assertEqual([r["bytes"] for r in reads], sorted(r["bytes"] for r in reads))
        self.assertTrue(all(r["gb_per_s"] > 0 for r in reads))
        self.assertGreater(report["ceiling"]["gflop_per_s"]["fma_f32"], 0)
        ceiling = max(report["ceiling"]["gflop_per_s"].values())
        for unit in report["units"]:
            self.assertIn(unit["outcome"], ("same", "faster", "kept"))
            # 2 n in out operations; weights once, activations in and out.
            self.assertEqual(unit["flops"], 2 * unit["rows"] * 256 * 6144)
            self.assertEqual(unit["bytes"], report["units"][0]["bytes"] + (unit["rows"] - 1) * (256 * 2 + 6144 * 4))
            timed = [(t["backend"], t["tactic"]) for t in unit["times"]]
            self.assertIn((unit["chosen"]["backend"], unit["chosen"]["tactic"]), timed)
            for t in (unit["chosen"], unit["untuned"], *unit["times"]):
                self.assertEqual(list(t), TIME)
                self.assertAlmostEqual(t["gflop_per_s"], unit["flops"] / t["us"] / 1e3, delta=1e-6 * t["gflop_per_s"])
                self.assertAlmostEqual(t["gb_per_s"], unit["bytes"] / t["us"] / 1e3, delta=1e-6 * t["gb_per_s"])
                if t["limit"] == "arithmetic":
                    self.assertAlmostEqual(t["of_roof"], t["gflop_per_s"] / ceiling, delta=1e-6)
            if unit["outcome"] == "faster":
                self.assertLess(unit["chosen"]["us"], unit["untuned"]["us"])
            else:
                self.assertEqual(unit["chosen"], unit["untuned"])
        # A tactic that looked hopeless while it was proved is not timed: on a busy machine that can leave one in a bucket.
        self.assertGreater(sum(len(u["times"]) for u in report["units"]), len(BUCKETS))
        self.assertTrue(report["clock"] and report["power"])

        def figures(r):
            return [(u["rows"], u["outcome"], [(t["backend"], t["tactic"], t["us"]) for t in (u["chosen"], u["untuned"], *u["times"])])
                    for u in r["units"]]

        again, _ = self.json("--op", "linear")
        self.assertEqual(again["from_earlier_runs"], 7)
        self.assertEqual(figures(again), figures(report))
        r = self.tune("--op", "linear")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("7 of 7 buckets measured", r.stdout)
        self.assertIn("7 of them by earlier runs", r.stdout)
        self.assertIn("ceilings: reads", r.stdout)
        self.assertRegex(r.stdout, r"\nrows +chosen +us +noise +GB/s +GFLOP/s +of roof +limit +untuned choice\n")
        self.assertNotIn("\x1b", r.stdout + r.stderr)
        # What was found is what serving chooses.
        with serving.Server(env={"XDG_CACHE_HOME": self.folder.name}) as server:
            plan = re.search(r"linear 256->6144 [^:]*: (.*)", server.errors()).group(1)
        chosen = [f"{u['chosen']['backend']}/{u['chosen']['tactic']}" for u in report["units"]]
        self.assertEqual(re.findall(r"\w+/\w+", plan), [c for i, c in enumerate(chosen) if i == 0 or c != chosen[i - 1]])

        # The file: taken where it fits, each choice measured again.
        for path in self.tunings():
            os.remove(path)
        taken, errors = self.json("--op", "linear", "--from", out)
        self.assertIn(f"7 of 7 buckets taken from {out}", errors)
        self.assertEqual((taken["done"], taken["from_earlier_runs"]), (7, 0))
        self.assertEqual(self.json("--op", "linear")[0]["from_earlier_runs"], 7)
        with open(out, "rb") as f:
            text = f.read()
        bad = self.path("bad")

        def refused(data, *words):
            with open(bad, "wb") as f:
                f.write(data)
            before = {p: open(p, "rb").read() for p in self.tunings()}
            r = self.tune("--op", "linear", "--from", bad)
            self.assertEqual(r.returncode, 1, r)
            self.assertEqual(r.stdout, "")
            for word in (bad, *words):
                self.assertIn(word, r.stderr)
            self.assertEqual({p: open(p, "rb").read() for p in self.tunings()}, before)

        everything = content(out)
        refused(text[:-20], "damaged or cut")
        refused(text.replace(b'"samples"', b'"sample5"', 1), "damaged or cut")
        refused(b"", "is no tuning")
        refused(os.urandom(4096), "is no tuning")
        refused(b"mettle-tuning 7 0\n{}", "another version")
        refused(with_checksum([[[[[[[[[[[[]]]]]]]]]]]]), "nested deeper")
        refused(with_checksum({**everything, "build": "0"}), "another build of mettle", '"0"')
        refused(with_checksum({**everything, "device": "sm90"}), "another device", "sm90")
        refused(with_checksum({**everything, "threads": everything["threads"] + 1}), "--threads")
        for unit_change, words in (({"problem": "linear 1->1 bf16 bf16"}, "has no problem"), ({"rows": 3}, "units[0].rows"),
                                   ({"chosen": {**everything["units"][0]["chosen"], "us": -1}}, "units[0].chosen.us"),
                                   ({"times": "none"}, "units[0].times")):
            refused(with_checksum({**everything, "units": [{**everything["units"][0], **unit_change}]}), words)

    def test_a_file_that_puts_a_refused_tactic_first(self):
        out = self.path("file")
        # Proved by the scalar tactics alone; the file of this very identity then claims a better one.
        self.json("--op", "linear", "--budget", "60", "--out", out, METTLE_CPU_ISA="scalar")
        everything = content(out)
        for backend, tactic, words in (("cpu_gemm", "avx512", "ISA_MISSING"), ("cpu_magic", "scalar", 'no backend "cpu_magic"')):
            unit = json.loads(json.dumps(everything["units"][0]))
            first = {"backend": backend, "tactic": tactic, "us": 0.001, "noise": 0, "samples": 25}
            unit.update(times=[first, *unit["times"]], chosen=first, outcome="faster")
            with open(self.path("bad"), "wb") as f:
                f.write(with_checksum({**everything, "units": [unit]}))
            r = self.tune("--op", "linear", "--from", self.path("bad"), METTLE_CPU_ISA="scalar")
            self.assertEqual(r.returncode, 1, r)
            self.assertIn(words, r.stderr)
            # Nor when it lies where serving looks.
            kept, = self.tunings()
            with open(self.path("bad"), "rb") as f, open(kept, "wb") as k:
                k.write(f.read())
            with serving.Server(env={"XDG_CACHE_HOME": self.folder.name, "METTLE_CPU_ISA": "scalar"}) as server:
                self.assertEqual(server.chat("What is 41 + 1?", max_tokens=1)[0], 200)
                plan = re.search(r"linear 256->6144 [^:]*: (.*)", server.errors()).group(1)
            self.assertTrue(plan.startswith("cpu_") and "/scalar" in plan, plan)
            self.assertNotIn(f"{backend}/{tactic}", plan)

    def test_a_small_budget_and_a_kill_lose_nothing(self):
        report, errors = self.json("--op", "moe", "--budget", "0.1")
        self.assertTrue(report["out_of_time"])
        self.assertLess(report["done"], report["wanted"])
        self.assertIn("--budget are used up", errors)
        process = subprocess.Popen(self.command("tune", "--op", "moe", "--budget", "600"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=self.environment())

        def kept():
            return len(content(self.tunings()[0])["units"]) if self.tunings() else 0

        end = time.monotonic() + 300
        while kept() < report["done"] + 1:  # the file is replaced as a whole: it is always complete
            self.assertIsNone(process.poll(), "it ended before it was killed")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        children = serving.children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for child in children:
            self.assertTrue(serving.ends(child, 60), "the child goes on working without its parent")
        left = [f for _, _, files in os.walk(self.folder.name) for f in files]
        self.assertFalse([f for f in left if not f.endswith(".json")], left)
        done = content(self.tunings()[0])["units"]
        report, _ = self.json("--op", "moe", "--budget", "600")
        self.assertEqual(report["from_earlier_runs"], len(done))
        self.assertEqual(report["done"], report["wanted"])
        # What was finished was not measured again.
        now = {(u["problem"], u["rows"]): u for u in content(self.tunings()[0])["units"]}
        for unit in done:
            self.assertEqual(now[unit["problem"], unit["rows"]], unit)

    def test_bench_kernels_keeps_nothing(self):
        report, _ = self.json("--op", "moe", "--budget", "5", what=("bench", "kernels"))
        self.assertTrue(report["units"])
        self.assertEqual(self.tunings(), [])
        r = self.run_mettle("bench", "kernels", "--op", "join", "--budget", "2")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertRegex(r.stdout, r"\nrows +tactic +us +noise +GB/s +GFLOP/s +of roof +limit\n")

    def test_damaged_results_are_measured_again(self):
        self.json("--op", "join", "--budget", "60")
        path, = self.tunings()
        with open(path, "r+b") as f:
            f.truncate(os.path.getsize(path) - 5)
        report, _ = self.json("--op", "join", "--budget", "60")
        self.assertEqual((report["from_earlier_runs"], report["done"]), (0, report["wanted"]))
        self.assertEqual(self.json("--op", "join", "--retune", "--budget", "60")[0]["from_earlier_runs"], 0)

    def test_child_rejects_garbage(self):
        for text, says in (("", "got none"), ("no json\n", "no JSON object"),
                           ('{"threads": 1}\n{"problem": {"op": "gelu"}, "entries": [], "buckets": [], "index": 0}\n', "gelu")):
            r = subprocess.run([serving.PROGRAM, "tune", "--child"], input=text, capture_output=True, text=True, timeout=60)
            self.assertNotEqual(r.returncode, 0, text)
            self.assertIn(says, r.stderr)


if __name__ == "__main__":
    serving.main()
