"""`mettle sweep` as a program: the example night, killed and taken up again; every way in which a server can fail; what is
left behind is found and ended, what is not ours is left alone."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
FAKE = os.path.join(ROOT, "tests/tools/fake_server.py")
PATIENCE = 300


def wait_for(what, holds):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = holds()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def processes_marked(out):
    """Ids of living processes that carry the mark of the sweep in that folder."""
    with open(os.path.join(out, "sweep.json")) as f:
        mark = ("SWEEP_MARK=" + json.load(f)["mark"]).encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as f:
                    if mark in f.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                pass
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Sweep(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mettle-sweep-")
        self.addCleanup(self.folder.cleanup)
        self.out = os.path.join(self.folder.name, "out")

    def plan(self, cells, top="", server="", more=""):
        """A plan of fake servers: {name: arguments}."""
        path = os.path.join(self.folder.name, "plan.toml")
        with open(path, "w") as f:
            f.write(f"{top}\n[server]\ncommand = [{json.dumps(sys.executable)}, {json.dumps(FAKE)}, '--port', '{{port}}', "
                    f"'--load-seconds', '0.1', '--token-ms', '1']\nsilence_seconds = 60\n{server}\n"
                    "[canary]\nprompts = [{ prompt = 'What is 12 plus 30?', answer = '42' }]\n" + more + "\n")
            for name, arguments in cells.items():
                f.write(f"[[cell]]\nname = {json.dumps(name)}\nargs = {json.dumps(arguments)}\n")
        return path

    def sweep(self, plan, *flags):
        r = serving.run_program("sweep", plan, "--out", self.out, "--json", *flags)
        return r, (json.loads(r.stdout) if r.stdout else None)

    def cells(self, plan, *flags):
        r, summary = self.sweep(plan, *flags)
        self.assertIsNotNone(summary, r.stderr)
        return {cell["name"]: cell for cell in summary["cells"]}

    def start(self, plan, **how):
        return subprocess.Popen([serving.PROGRAM, "sweep", plan, "--out", self.out], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache}, **how)

    def results(self):
        found = {}
        cells = os.path.join(self.out, "cells")
        for name in sorted(os.listdir(cells)) if os.path.isdir(cells) else []:
            path = os.path.join(cells, name, "result.json")
            if os.path.exists(path):
                found[name] = os.stat(path).st_ino
        return found

    def nothing_left(self):
        self.assertEqual(wait_for("no process of the sweep", lambda: processes_marked(self.out) == []), True)


class Night(Sweep):
    def test_the_night_killed_in_the_middle_and_taken_up_again(self):
        plan = os.path.join(ROOT, "examples/night.toml")
        first = self.start(plan)
        running = lambda: len(self.results()) >= 2 and processes_marked(self.out)
        wait_for("two cells done and one running", running)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        kept = self.results()
        r, summary = self.sweep(plan)
        self.assertEqual(r.returncode, 0, r.stderr)
        cells = {cell["name"]: cell for cell in summary["cells"]}
        self.assertEqual(len(cells), 8)
        for name, inode in kept.items():
            self.assertEqual(self.results()[name], inode, "a finished cell was repeated")
        self.assertEqual([c["folder"] for c in cells.values() if c["kept"]], sorted(kept))
        causes = {name: (cell["outcome"], cell["cause"]) for name, cell in cells.items()}
        self.assertEqual(causes, {
            "sglang attention trtllm": ("failed", "WRONG_SM"),
            "sglang shuffle in host memory": ("failed", "HOST_OOM"),
            "sglang moe cutlass": ("failed", "NAN_LOGITS"),
            "vllm fp8 cache": ("failed", "NONFINITE_LOGPROB"),
            "vllm custom all-reduce": ("failed", "P2P_HANG"),
            "sglang with a helper": ("failed", "LEFTOVER_OR_TENANT"),
            "sglang marlin": ("works", ""),
            "mettle on the CPU": ("works", ""),
        })
        self.assertEqual(summary["winner"], "mettle on the CPU")
        self.assertIn("in decode", cells["vllm fp8 cache"]["sentence"])
        self.assertIn("Unsupported architecture", "".join(cells["sglang attention trtllm"]["evidence"]))
        self.assertIn("signal 9", cells["sglang shuffle in host memory"]["end"])
        self.assertTrue(any("held by process" in left for left in cells["sglang with a helper"]["leftovers"]),
                        cells["sglang with a helper"])
        for figure in cells["sglang marlin"]["bench"]:
            self.assertEqual((figure["completed"], figure["failed"]), (4, 0))
        self.nothing_left()
        self.replay()

    def replay(self):
        """The recipe's command answers the recipe's canary; a server that answers something else does not."""
        recipe = os.path.join(self.out, "recipe")
        with open(os.path.join(recipe, "command.sh")) as f:
            text = f.read()
        port = free_port()
        script = os.path.join(recipe, "on_other_port.sh")
        with open(script, "w") as f:
            f.write(text.replace("--port 8000", f"--port {port}"))
        server = subprocess.Popen(["sh", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache})
        try:
            self.assertTrue(server.stdout.readline().startswith("ready"))
            replay = [sys.executable, os.path.join(recipe, "replay.py"), f"http://127.0.0.1:{port}"]
            r = subprocess.run(replay, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            self.assertEqual(r.stdout.count("right"), 2, r.stdout)
        finally:
            server.terminate()
            server.wait()
            server.stdout.close()
        r = subprocess.run(replay, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(r.returncode, 1)
        self.assertIn("no answer", r.stdout)


class Failures(Sweep):
    def test_every_way_to_fail_has_its_name(self):
        faults = {
            "dies-at-first-request": ("canary", "KERNEL_FAULT"),
            "nan-error": ("canary", "NONFINITE_LOGPROB"),
            "repeats": ("canary", "REPEATS"),
            "wrong": ("canary", "WRONG_ANSWER"),
            "empty": ("canary", "EMPTY_ANSWER"),
            "fails-under-load": ("bench", "REQUESTS_FAILED"),
            "unhealthy": ("health", "UNHEALTHY"),
            "exits": ("ready", "UNKNOWN"),
            "floods": ("", ""),
            "ignores-sigterm": ("", ""),
        }
        plan = self.plan({name: ["--behaviour", name, "--flood-mib", "8"] for name in faults}, top="log_mib = 1",
                         server="stop_seconds = 2", more="[bench]\nconcurrency = [4]\nrequests = 8\noutput_tokens = 8\ninput_words = 8")
        cells = self.cells(plan)
        self.assertEqual({name: (cell["stage"], cell["cause"]) for name, cell in cells.items()}, faults)
        self.assertEqual(cells["exits"]["end"], "exit code 3")
        self.assertIn("illegal memory access", "".join(cells["dies-at-first-request"]["evidence"]))
        self.assertIn("status 503", cells["unhealthy"]["sentence"])
        self.assertIn("must be \"42\"", cells["wrong"]["sentence"])
        self.assertIn("was killed", "".join(cells["ignores-sigterm"]["notes"]))
        flood = cells["floods"]
        self.assertGreater(flood["log_bytes"], 7 << 20)
        size = os.path.getsize(os.path.join(self.out, "cells", flood["folder"], "log.txt"))
        self.assertLess(size, (1 << 20) + 200)
        self.assertEqual(flood["log_bytes"] - flood["log_left_out"], 1 << 20)
        with open(os.path.join(self.out, "report.md")) as f:
            self.assertIn("10 cells: 2 work, 8 failed", f.read())
        self.nothing_left()

    def test_a_detached_process_and_shared_memory_are_found_and_removed(self):
        # A process of the same name that is not ours, and a file of shared memory beside it, stay.
        mine = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(3600)"])
        self.addCleanup(lambda: (mine.kill(), mine.wait()))
        cell = self.cells(self.plan({"a": ["--behaviour", "detaches"]}, server="stop_seconds = 1.5"))["a"]
        self.assertEqual((cell["outcome"], cell["stage"], cell["cause"]), ("failed", "stop", "LEFTOVER_OR_TENANT"))
        left = "\n".join(cell["leftovers"])
        self.assertIn("time.sleep(3600)", left)
        shared = [line for line in cell["leftovers"] if line.startswith("/dev/shm/fake_server_")]
        self.assertEqual(len(shared), 1, left)
        self.assertFalse(os.path.exists(shared[0]))
        self.assertIsNone(mine.poll())
        self.assertNotIn(f"process {mine.pid} ", left)

    def test_a_port_that_somebody_holds(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            cell = self.cells(self.plan({"a": []}, server=f"port = {port}"))["a"]
            self.assertEqual((cell["stage"], cell["cause"]), ("before", "LEFTOVER_OR_TENANT"))
            self.assertIn(f"port {port} is taken by process {os.getpid()} ", cell["sentence"])

    def test_silence_and_the_deadline(self):
        cells = self.cells(self.plan({"a": ["--behaviour", "never-ready"]}, server="deadline_seconds = 3"))
        self.assertEqual((cells["a"]["stage"], cells["a"]["cause"]), ("ready", "NOT_READY"))
        self.assertIn("not ready after 3 s", cells["a"]["sentence"])

    def test_what_the_last_lines_before_a_silence_mean(self):
        path = self.plan({"a": ["--engine", "vllm", "--behaviour", "hangs"]})
        with open(path, "a") as f:
            f.write("silence_seconds = 2\n")  # of the cell
        cell = self.cells(path)["a"]
        self.assertEqual((cell["stage"], cell["cause"]), ("ready", "P2P_HANG"))
        self.assertIn("it wrote nothing for 2 s", cell["sentence"])

    def test_a_wrong_answer_stays_one_and_warnings_of_the_log_are_noted(self):
        path = self.plan({"a": []})
        warning = "WARNING w1_weight_scale_2 must match w3_weight_scale_2. Accuracy may be affected."
        command = ["sh", "-c", f"echo '{warning}'; exec \"$0\" \"$@\"", sys.executable, FAKE, "--port", "{port}",
                   "--load-seconds", "0.1", "--token-ms", "1", "--behaviour", "wrong"]
        with open(path, "a") as f:
            f.write(f"command = {json.dumps(command)}\n")
        cell = self.cells(path)["a"]
        self.assertEqual((cell["stage"], cell["cause"]), ("canary", "WRONG_ANSWER"))
        self.assertIn("its log also tells of SCALE_MISMATCH", "".join(cell["notes"]))

    def test_a_program_that_is_not_there(self):
        path = os.path.join(self.folder.name, "p.toml")
        with open(path, "w") as f:
            f.write("[server]\ncommand = ['/no/such/server']")
        r, summary = self.sweep(path)
        self.assertEqual(r.returncode, 1)
        cell = summary["cells"][0]
        self.assertEqual((cell["stage"], cell["cause"]), ("launch", "NOT_STARTED"))
        self.assertIn("/no/such/server: cannot be started", cell["sentence"])


class Order(Sweep):
    def test_skips_of_the_device_and_of_earlier_results(self):
        plan = self.plan({"refused": ["--moe-runner-backend", "flashinfer_trtllm"],
                          "dies": ["--attention-backend", "x", "--behaviour", "dies-in-load"],
                          "same": ["--attention-backend", "x"],
                          "other": ["--attention-backend", "y"],
                          "late": []},
                         top='device = "sm120"', more='[[skip.rules]]\naxis = "--attention-backend"\ncauses = ["WRONG_SM"]')
        r = serving.run_program("sweep", plan, "--out", self.out, "--dry-run", "--json")
        self.assertEqual([c["outcome"] for c in json.loads(r.stdout)["cells"]],
                         ["skipped", "not run", "not run", "not run", "not run"])
        self.assertFalse(os.path.exists(self.out))
        cells = self.cells(plan, "--stop-on-winner")
        self.assertEqual({name: cell["outcome"] for name, cell in cells.items()},
                         {"refused": "skipped", "dies": "failed", "same": "skipped", "other": "works", "late": "not run"})
        self.assertIn("sm100", cells["refused"]["sentence"])
        self.assertIn('in cell "dies"', cells["same"]["sentence"])
        cells = self.cells(plan, "--only", "late")
        self.assertEqual(cells["late"]["outcome"], "works")
        self.assertTrue(cells["other"]["kept"])

    def test_a_changed_cell_is_run_again_and_only_it(self):
        self.cells(self.plan({"a": [], "b": []}))
        cells = self.cells(self.plan({"a": [], "b": ["--token-ms", "2"]}))
        self.assertEqual([cells[name]["kept"] for name in "ab"], [True, False])

    def test_ctrl_c_ends_the_cell_and_the_next_start_goes_on(self):
        plan = self.plan({"a": [], "b": ["--load-seconds", "600"], "c": []})
        sweep = self.start(plan)
        wait_for("the second cell runs", lambda: len(self.results()) == 1 and processes_marked(self.out))
        # A second sweep in the same folder is refused while the first one runs.
        other = serving.run_program("sweep", plan, "--out", self.out)
        self.assertEqual(other.returncode, 1)
        self.assertIn("another sweep runs in this folder", other.stderr)
        sweep.send_signal(signal.SIGINT)
        out, errors = sweep.communicate(timeout=PATIENCE)
        self.assertEqual(sweep.returncode, 130, errors)
        self.assertIn("the same command goes on from here", errors)
        self.assertEqual(processes_marked(self.out), [])
        self.assertEqual(len(self.results()), 1)
        cells = self.cells(self.plan({"a": [], "b": [], "c": []}))
        self.assertEqual([(cells[n]["outcome"], cells[n]["kept"]) for n in "abc"],
                         [("works", True), ("works", False), ("works", False)])

    def test_a_terminal_that_closes_ends_the_night_but_not_under_nohup(self):
        plan = self.plan({"a": ["--load-seconds", "600"]})
        for at_start, ends_it in ((signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, signal.SIGTERM)):
            sweep = self.start(plan, preexec_fn=lambda: signal.signal(signal.SIGHUP, at_start))
            started = os.path.join(self.out, "sweep.json")
            wait_for("the cell runs", lambda: os.path.exists(started) and processes_marked(self.out))
            self.assertEqual(serving.ignores(sweep.pid, signal.SIGHUP), at_start == signal.SIG_IGN)
            sweep.send_signal(ends_it)
            _, errors = sweep.communicate(timeout=PATIENCE)
            self.assertEqual(sweep.returncode, 128 + ends_it, errors)
            self.assertEqual(processes_marked(self.out), [])

    def test_what_a_killed_sweep_left_ends_also_when_nothing_is_to_be_run(self):
        # A server dies with its sweep; what it started does not.
        plan = self.plan({"a": []}, more='[[cell]]\nname = "b"\nargs = ["--behaviour", "leaves-child"]\nready = "log: ^never$"')
        self.assertEqual(self.cells(plan, "--only", "a")["a"]["outcome"], "works")
        sweep = self.start(plan)
        wait_for("a server and its child", lambda: len(processes_marked(self.out)) == 2)
        sweep.kill()
        sweep.communicate()
        wait_for("the child alone", lambda: len(processes_marked(self.out)) == 1)
        r, summary = self.sweep(plan, "--only", "a")
        self.assertEqual([c["kept"] for c in summary["cells"] if c["name"] == "a"], [True])
        self.assertIn("which was killed, still ran; they are ended", r.stderr)
        self.nothing_left()

    def test_only_may_be_given_again_and_before_the_plan(self):
        plan = self.plan({"a": [], "b": [], "c": []})
        for arguments in ((plan, "--only", "a", "--only", "3"), ("--only", "a", "--only", "c", plan)):
            r = serving.run_program("sweep", *arguments, "--out", self.out, "--dry-run")
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(re.findall(r"(?m)^[123]  (\w)  +(run|not run)  ", r.stdout),
                             [("a", "run"), ("b", "not run"), ("c", "run")], r.stdout)

    def test_bad_input(self):
        def usage(says, *arguments):
            r = serving.run_program("sweep", *arguments)
            self.assertEqual((r.returncode, r.stdout), (2, ""), r)
            self.assertIn(says, r.stderr)

        plan = self.plan({"a": []})
        usage("/no/such.toml: must be a plan file", "/no/such.toml")
        usage("PLAN", "--json")
        usage('--only: no cell "z"', plan, "--only", "z", "--dry-run")
        usage("must be a folder", plan, "--out", plan)
        usage("holds other things and no sweep", plan, "--out", self.folder.name)
        with open(os.path.join(self.folder.name, "bad.toml"), "w") as f:
            f.write("[server]\ncommand = ['x']\nporrt = 1")
        usage("bad.toml:3: server.porrt: no such key", os.path.join(self.folder.name, "bad.toml"))


if __name__ == "__main__":
    unittest.main()
