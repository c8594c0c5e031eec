"""SIGKILL at random moments: the next start works, no process goes on, no half file lies in the cache or beside it.

`kill_test.py PROGRAM` runs every command of COMMANDS; each is killed MOMENTS times."""
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
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

MOMENTS = 20
SEED = 7
DEADLINE, MOST_CPU_SECONDS = 60, 0.5
# Per command: a long run, killed in the middle of its work, and a short one, killed anywhere from its start to beyond its
# end, so that the writing of results is met as well.
COMMANDS = {
    "prove": (["prove", "--reprove"], ["prove", "--reprove", "--op", "join", "--backend", "reference"]),
    "tune": (["tune", "--budget", "30", "--retune", "--out", "{out}"],
             ["tune", "--op", "join", "--budget", "1", "--retune", "--out", "{out}"]),
}
LONG_SECONDS, SHORT_MOST = 1.5, 2.5


def marked(mark):
    """Processes that carry the mark in their environment and still run."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as f:
                if mark not in f.read():
                    continue
            with open(f"/proc/{entry}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                    found.append(int(entry))
        except OSError:
            pass
    return found


def cpu_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0


class Kill(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mettle-kill-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.cache, self.temp = (os.path.join(self.folder, n) for n in ("cache", "temp"))
        self.out = os.path.join(self.folder, "out.json")
        os.mkdir(self.cache)
        os.mkdir(self.temp)
        self.mark = str(uuid.uuid4())
        self.env = {**os.environ, "XDG_CACHE_HOME": self.cache, "TMPDIR": self.temp, "KILL_TEST_MARK": self.mark}

    def start(self, arguments):
        process = subprocess.Popen([serving.PROGRAM] + [a.format(out=self.out) for a in arguments], env=self.env,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def kill_after(self, arguments, seconds):
        """Starts it, kills it after that time; whether it still ran then."""
        process = self.start(arguments)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        ran = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        return ran

    def check_nothing_runs(self, after):
        """Nobody works on: what still ends may take its time on a busy machine, but no more than a moment of a core."""
        pause, end, first = threading.Event(), time.monotonic() + DEADLINE, {}
        while left := marked(self.mark.encode()):
            used = {pid: cpu_seconds(pid) for pid in left}
            first = {**used, **first}
            working = [pid for pid in left if used[pid] - first[pid] > MOST_CPU_SECONDS]
            if working or time.monotonic() > end:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                self.fail(f"{working or left} go on without the parent, which was killed: {after}")
            pause.wait(0.02)

    def hold_pipes(self, pid):
        """Opens every pipe of a proof child, both ends, until the test is over; how many they are."""
        held = 0
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"--child" not in f.read().split(b"\0"):
                    return 0
            for entry in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{entry}"
                if os.readlink(path).startswith("pipe:"):
                    self.addCleanup(os.close, os.open(path, os.O_RDWR | os.O_NONBLOCK))
                    held += 1
        except OSError:  # it has just ended
            return 0
        return held

    def start_with_held_child(self, arguments):
        """A run and a child of its that is at work and cannot see its end by a pipe: input, results, errors."""
        pause, end = threading.Event(), time.monotonic() + DEADLINE
        while time.monotonic() < end:
            process = self.start(arguments)
            while process.poll() is None and time.monotonic() < end:
                for child in serving.children_of(process.pid):
                    if self.hold_pipes(child) >= 3 and process.poll() is None:
                        return process, child
                pause.wait(0.01)
        self.fail(f"no child of {arguments} was met at work")

    def test_a_child_whose_pipes_stay_open_ends_too(self):
        """By the signal that its parent's death sends: nothing else tells it."""
        commands = serving.run_program("--help").stdout
        for name, (long, _) in COMMANDS.items():
            with self.subTest(name):
                if not re.search(rf"(?m)^ +{name} ", commands):
                    self.skipTest(f"this program has no {name}")
                process, child = self.start_with_held_child(long)
                process.kill()
                process.wait()
                self.check_nothing_runs(f"{name}, the pipes of child {child} held open")
                self.check_files(name)

    def unnamed_files(self):
        """Whether this file system can hide what is being written; where it cannot, the next writer sweeps."""
        try:
            os.close(os.open(self.folder, os.O_TMPFILE | os.O_WRONLY))
            return True
        except OSError:
            return False

    def check_files(self, after):
        files = [os.path.join(d, f) for d, _, names in os.walk(self.folder) for f in names]
        for path in files:
            if path.endswith(".tmp") and not self.unnamed_files():
                continue
            self.assertTrue(path.endswith(".json"), f"{path} was left behind: {after}")
            self.assertTrue(serving.is_whole(path), f"{path} is no whole file: {after}")
        self.assertEqual(os.listdir(self.temp), [], after)

    def works(self, arguments):
        r = subprocess.run([serving.PROGRAM] + [a.format(out=self.out) for a in arguments], env=self.env,
                           capture_output=True, text=True, timeout=300)
        self.assertEqual(r.returncode, 0, (arguments, r.stdout, r.stderr))
        self.assertNotIn("not kept", r.stderr)
        return r

    def test_any_moment(self):
        """What a killed run leaves is nothing or whole, and nobody works on without it."""
        moments = random.Random(SEED)
        for name, (long, short) in COMMANDS.items():
            with self.subTest(name):
                if not re.search(rf"(?m)^ +{name} ", serving.run_program("--help").stdout):
                    self.skipTest(f"this program has no {name}")
                begin = time.monotonic()
                self.works(short)
                whole_run = min(1.2 * (time.monotonic() - begin), SHORT_MOST)
                caught = 0
                for i in range(MOMENTS):
                    arguments, most = ((long, LONG_SECONDS), (short, whole_run))[i % 2]
                    seconds = moments.uniform(0, most)
                    caught += self.kill_after(arguments, seconds)
                    after = f"{name}, moment {i} after {seconds:.3f} s"
                    self.check_nothing_runs(after)
                    self.check_files(after)
                    if i % 5 == 4:  # and the next start works
                        self.works(["prove", "--op", "join", "--backend", "reference"])
                self.assertGreater(caught, MOMENTS // 4, f"{name}: most runs were over before they were killed")
                self.works(short)
                self.check_files(f"{name}, at the end")

    def kept_verdicts(self):
        """What the store holds now, by backend and tactic; none while there is no whole file."""
        folder = os.path.join(self.cache, "mettle", "verdicts")
        files = os.listdir(folder) if os.path.isdir(folder) else []
        for name in files:
            path = os.path.join(folder, name)
            if name.endswith(".json") and serving.is_whole(path):
                with open(path) as f:
                    entries = json.loads(f.read().partition("\n")[2])["entries"]
                return {(e["problem"], e["backend"], e["tactic"]): e for e in entries}
        return {}

    def test_what_was_proved_before_the_kill_is_not_proved_again(self):
        """Each verdict is kept when it is told: the next start goes on behind the last one."""
        prove = ["prove", "--json", "{out}"]
        process = self.start(prove)
        pause = threading.Event()
        while len(self.kept_verdicts()) < 3 and process.poll() is None:
            pause.wait(0.01)
        self.assertIsNone(process.poll(), "the run ended before three of its verdicts were kept")
        process.kill()
        process.wait()
        self.check_nothing_runs("three verdicts")
        self.check_files("three verdicts")
        kept = self.kept_verdicts()
        self.assertGreaterEqual(len(kept), 3)
        self.works(prove)
        with open(self.out) as f:
            entries = {(e["problem"], e["backend"], e["tactic"]): e for e in json.load(f)["results"]}
        self.assertGreater(len(entries), len(kept), "the run was over when it was killed")
        for key, e in entries.items():
            if e["verdict"] == "OK":
                self.assertEqual(e["cached"], key in kept, key)
        for key, e in kept.items():
            self.assertEqual(entries[key]["comparisons"], e["comparisons"], key)

    def test_a_half_written_file_of_a_killed_writer_is_swept(self):
        """A file system without unnamed files shows what is being written: the next writer takes it away."""
        self.works(["prove", "--op", "join", "--backend", "reference"])
        folder = os.path.join(self.cache, "mettle", "verdicts")
        kept, = os.listdir(folder)
        for left in (f"{kept}.4711.0.tmp", f"0123456789abcdef.json.1.17.tmp"):
            with open(os.path.join(folder, left), "w") as f:
                f.write("mettle-ver")
        with open(os.path.join(folder, "notes.tmp"), "w") as f:  # not ours
            f.write("mine")
        self.works(["prove", "--op", "join", "--backend", "reference", "--reprove"])
        self.assertEqual(sorted(os.listdir(folder)), sorted([kept, "notes.tmp"]))


if __name__ == "__main__":
    serving.main()
