"""`mettle prove`: table, JSON, exit codes, kept and forgotten verdicts, a killed parent leaves nothing behind."""
import fcntl
import json
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving

FIELDS = ["op", "backend", "tactic", "problem", "verdict", "have", "need", "sentence", "remedy", "max_error", "bound",
          "group_error", "comparisons", "cases", "ms", "cached", "us", "timed_from_cache"]
ROUNDS = 4  # of sixteen at once; 20 passed once, by hand
OPS = {"embed", "join", "linear", "moe", "attention", "gdn", "sample"}


def cpu_seconds(pid):
    """What a process has used so far; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_flags_as_sets():
    """What the kernel says this processor has; nothing where it does not tell."""
    with open("/proc/cpuinfo") as f:
        line = next((x for x in f if x.startswith("flags")), ":")
    flags = set(line.split(":")[1].split())
    needs = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
             "avx512bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"}}
    return {name for name, need in needs.items() if need <= flags}


class Prove(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def prove(self, *arguments, **env):
        return subprocess.run([serving.PROGRAM, "prove", *arguments], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "XDG_CACHE_HOME": self.folder.name, **env})

    def results(self, *arguments, **env):
        path = os.path.join(self.folder.name, "out.json")
        r = self.prove("--json", path, *arguments, **env)
        with open(path) as f:
            return r, json.load(f)

    def test_everything_is_proved_and_kept(self):
        r, report = self.results()
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertEqual(list(report), ["device", "build", "row_buckets", "results"])
        self.assertEqual({e["op"] for e in report["results"]}, OPS)
        for e in report["results"]:
            self.assertEqual(list(e), FIELDS)
            self.assertIn(e["verdict"], ("OK", "ISA_MISSING"))
            if e["verdict"] == "OK":
                self.assertGreater(e["comparisons"], 0)
                self.assertLessEqual(e["max_error"], e["bound"])
                self.assertLessEqual(e["group_error"], 1)
                self.assertEqual(len(e["us"]), len(report["row_buckets"]))
        for op in OPS:
            self.assertIn(op, r.stdout)
        self.assertNotIn("\x1b", r.stdout + r.stderr)
        again, second = self.results()
        self.assertEqual(again.returncode, 0)
        self.assertIn("cached", again.stdout)
        for e in report["results"]:
            self.assertFalse(e["cached"])
            e["cached"] = e["verdict"] == "OK"
        self.assertEqual(second, report)

    def test_every_instruction_set_of_this_processor_ran_all_cases(self):
        """Each set is a tactic of every op with fast backends; all tactics of a backend saw the same cases."""
        r = subprocess.run([serving.PROGRAM, "explain", "--json", "--device", "cpu"], capture_output=True, text=True,
                           timeout=600, env={**os.environ, "XDG_CACHE_HOME": self.folder.name})
        sets = json.loads(r.stdout)["device"]["instruction_sets"]
        self.assertIn("scalar", sets)
        self.assertLessEqual(cpu_flags_as_sets(), set(sets))
        r, report = self.results()
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        proved, seen = {}, {}
        for e in report["results"]:
            if e["backend"] == "reference":
                continue
            self.assertEqual(e["verdict"], "OK", e)  # a set that is here is no refusal
            proved.setdefault(e["op"], set()).add(e["tactic"].split("/")[0])
            seen.setdefault((e["problem"], e["backend"]), set()).add((e["cases"], e["comparisons"]))
        self.assertLessEqual(OPS - {"embed"}, set(proved))
        for op, isas in proved.items():
            self.assertEqual(isas, set(sets), op)
        for key, counts in seen.items():
            self.assertEqual(len(counts), 1, key)

    def test_filters(self):
        r, report = self.results("--op", "linear", "--backend", "reference")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual({(e["op"], e["backend"]) for e in report["results"]}, {("linear", "reference")})
        r, report = self.results("--op", "linear", METTLE_CPU_ISA="scalar")
        self.assertEqual(r.returncode, 0, r.stderr)
        missing = [e for e in report["results"] if e["verdict"] == "ISA_MISSING"]
        self.assertTrue(missing)
        self.assertTrue(all(e["have"] == "scalar" and e["need"] and e["remedy"] for e in missing))

    def test_bad_input(self):
        for arguments, code, says in ((["--op", "nonsense"], 2, "nonsense"), (["--backend", "fastest"], 2, "fastest"),
                                      (["--nonsense"], 2, "--nonsense"), (["--threads", "0"], 2, "0"),
                                      (["/no/such/model"], 1, "/no/such/model"), ([""], 2, "must not be empty"),
                                      (["--op", "moe", "--backend", "cpu"], 2, "cpu_gemv"),
                                      (["--op", "join", "--json", ""], 2, "--json"),
                                      (["--op", "join", "--json", "/no/such/folder/out.json"], 1, "/no/such/folder")):
            r = self.prove(*arguments)
            self.assertEqual((r.returncode, r.stdout), (code, ""), (arguments, r))  # said before anything is proved
            self.assertIn(says, r.stderr)

    def test_a_filter_that_leaves_nothing(self):
        """A backend of a GPU on the CPU, one of another op, an op that the model has not: the names that there are."""
        config = os.path.join(HERE, "..", "data", "configs", "qwen3_30b_a3b", "config.json")
        for command, arguments, says in (
                ("prove", ["--backend", "mma", "--device", "cpu"], ["any op", "cpu_chunked", "got mma"]),
                ("prove", ["--op", "moe", "--backend", "w4a16_mma", "--device", "cpu"],
                 ["of moe with that name is built for cpu; there are cpu_gemv, cpu_gemm, reference, got w4a16_mma"]),
                ("prove", ["--op", "moe", "--backend", "cpu_tiled"], ["cpu_gemv", "got cpu_tiled"]),
                ("prove", [config, "--load-format", "dummy", "--backend", "cpu_chunked", "--device", "cpu"],
                 ["cpu_tiled", "got cpu_chunked"]),
                ("prove", [config, "--load-format", "dummy", "--op", "gdn"], ["--op: ", "attention", "got gdn"]),
                ("tune", [config, "--load-format", "dummy", "--op", "gdn"], ["--op: ", "attention", "got gdn"]),
                ("bench", ["kernels", config, "--load-format", "dummy", "--op", "gdn"], ["--op: ", "got gdn"])):
            r = subprocess.run([serving.PROGRAM, command, *arguments], capture_output=True, text=True, timeout=600,
                               env={**os.environ, "XDG_CACHE_HOME": self.folder.name})
            self.assertEqual((r.returncode, r.stdout), (2, ""), (command, arguments, r.stderr))
            for part in says:
                self.assertIn(part, r.stderr)

    def test_two_outputs_are_two_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out")
            r = serving.run_program("prove", "--json", path, "--html", os.path.join(folder, ".", "out"))
            self.assertEqual((r.returncode, r.stdout), (2, ""))
            self.assertIn("--html: must be another file than --json", r.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_json_into_a_pipe_leaves_the_pipe(self):
        pipe = os.path.join(self.folder.name, "pipe")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        r = self.prove("--op", "join", "--backend", "reference", "--json", pipe)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("results", json.loads(os.read(reader, 1 << 20)))
        os.close(reader)
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))

    def test_a_cache_that_cannot_be_written_is_one_warning(self):
        blocked = os.path.join(self.folder.name, "file")
        open(blocked, "w").close()
        r = self.prove("--op", "join", XDG_CACHE_HOME=blocked)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stderr.count("not kept"), 1, r.stderr)

    def kept(self):
        folder = os.path.join(self.folder.name, "mettle", "verdicts")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def test_forgetting(self):
        r = self.prove("--forget")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertIn("nothing is kept in " + os.path.join(self.folder.name, "mettle", "verdicts"), r.stdout)
        self.prove("--op", "join")
        own, = self.kept()
        other = os.path.join(self.folder.name, "mettle", "verdicts", "0123456789abcdef.json")
        notes = os.path.join(self.folder.name, "mettle", "verdicts", "notes.json")
        for path in (other, notes):
            with open(path, "w") as f:
                f.write("of another build")
        r = self.prove("--forget")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertRegex(r.stdout, rf"(?s)^forgotten: \S+/{own}\n  \d+ verdicts of \w+ .*, \d+ bytes\n$")
        self.assertEqual(self.kept(), ["0123456789abcdef.json", "notes.json"])
        self.assertNotIn("cached", self.prove("--op", "join").stdout)
        r = self.prove("--forget", "--all")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout.count("forgotten: "), 2, r.stdout)
        self.assertIn("a damaged file", r.stdout)
        self.assertEqual(self.kept(), ["notes.json"])
        for arguments in (["--all"], ["--forget", "--op", "moe"], ["--forget", "--reprove"], ["--forget", "models/mettle-tiny"],
                          ["--forget", "--html", "x.html"]):
            r = self.prove(*arguments)
            self.assertEqual(r.returncode, 2, (arguments, r))

    def test_sixteen_at_once_on_an_empty_cache(self):
        argv = [serving.PROGRAM, "prove", "--op", "join", "--backend", "reference"]
        for _ in range(ROUNDS):
            running = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "XDG_CACHE_HOME": self.folder.name}) for _ in range(16)]
            for process in running:
                out, err = process.communicate(timeout=300)
                self.assertEqual((process.returncode, err), (0, ""), out)
            self.assertEqual(len(self.kept()), 1, self.kept())
            self.assertEqual(self.prove(*argv[2:]).stdout.count("cached"), 2)
            self.prove("--forget")
            self.assertEqual(self.kept(), [])

    def on_a_terminal(self, *arguments, columns=60):
        """Exit code and what a terminal of that width gets on standard error."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([serving.PROGRAM, "prove", *arguments], stdin=subprocess.DEVNULL, stderr=theirs,
                                   stdout=subprocess.DEVNULL,
                                   env={**os.environ, "TERM": "xterm", "XDG_CACHE_HOME": self.folder.name})
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        return process.wait(60), said.decode()

    def test_a_bar_on_a_terminal(self):
        code, said = self.on_a_terminal("--op", "join", columns=50)
        self.assertEqual(code, 0, said)
        bars = said.split("\r\x1b[K")
        self.assertEqual((bars[0], bars[-1]), ("", ""), said)  # wiped at the end
        parts = [int(re.search(r"(\d+)%", b).group(1)) for b in bars[1:-1]]
        self.assertEqual(parts, sorted(parts))
        self.assertEqual(parts[-1], 100)
        for bar in bars[1:-1]:
            self.assertTrue(bar.startswith("proving "), bar)
            self.assertLess(len(bar), 50)
        self.assertIn(" join ", said)
        self.assertEqual(self.on_a_terminal("--op", "join"), (0, ""))  # nothing to wait for

    def test_child_rejects_garbage(self):
        for text, says in (("", "got none"), ("no json\n", "no JSON object"), ('{"threads": 1}\n{"problem": {"op": "gelu"}, "entries": []}\n', "gelu"),
                           ('{"threads": 1}\n{"problem": {"op": "embed", "vocab": -1, "hidden": 3}, "entries": []}\n', "vocab")):
            r = subprocess.run([serving.PROGRAM, "prove", "--child"], input=text, capture_output=True, text=True, timeout=60)
            self.assertNotEqual(r.returncode, 0, text)
            self.assertIn(says, r.stderr)

    def child_at_work(self, parent):
        """In the middle of its work: a child that has not read its input yet ends for want of it."""
        while not (children := serving.children_of(parent.pid)) or (cpu_seconds(children[0]) or 0) < 0.2:
            self.assertIsNone(parent.poll(), "it ended before its child was at work")
            time.sleep(0.01)
        return children[0]

    def test_silence_is_borne_for_as_long_as_asked(self):
        path = os.path.join(self.folder.name, "out.json")
        parent = subprocess.Popen([serving.PROGRAM, "prove", "--op", "moe", "--reprove", "--silence", "1", "--json", path],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env={**os.environ, "XDG_CACHE_HOME": self.folder.name})
        os.kill(self.child_at_work(parent), signal.SIGSTOP)
        self.assertEqual(parent.wait(300), 1)
        with open(path) as f:
            hung = [e for e in json.load(f)["results"] if e["verdict"] == "HANG"]
        self.assertTrue(any("silent for 1000 ms" in e["sentence"] for e in hung), hung)
        for seconds in ("0", "3601", "soon"):
            r = self.prove("--silence", seconds)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("--silence", r.stderr)

    def test_untimed_proves_and_leaves_the_times_to_the_next_run(self):
        least = []
        for extra in (("--untimed",), ("--untimed",), ()):
            r, out = self.results("--op", "join", *extra)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual({e["verdict"] for e in out["results"]}, {"OK"})
            least.append([e["us"][0] for e in out["results"]])
        self.assertEqual((set(least[0]), set(least[1])), ({0}, {0}))
        self.assertGreater(min(least[2]), 0)
        self.assertTrue(all(e["cached"] for e in out["results"]), "proved anew for want of times")
        r = self.prove("--untimed", "--html", "page.html")  # which says what serves
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertIn("--html", r.stderr)

    def test_a_killed_parent_leaves_no_child_and_no_half_file(self):
        parent = subprocess.Popen([serving.PROGRAM, "prove", "--reprove"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env={**os.environ, "XDG_CACHE_HOME": self.folder.name})
        child = self.child_at_work(parent)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        before, end = cpu_seconds(child), time.monotonic() + 60
        while (used := cpu_seconds(child)) is not None:
            if used - before > 1 or time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                self.fail("the child goes on working without its parent")
            time.sleep(0.01)
        left = [f for _, _, files in os.walk(self.folder.name) for f in files]
        self.assertFalse([f for f in left if not f.endswith(".json")], left)
        r = self.prove("--op", "join")
        self.assertEqual(r.returncode, 0, r.stderr)


if __name__ == "__main__":
    serving.main()
