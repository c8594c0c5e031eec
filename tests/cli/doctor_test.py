"""`mettle doctor` on this machine, whatever it has: it answers, as JSON too, and cleans up only what is its own."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen")
        time.sleep(0.02)


class Doctor(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def doctor(self, *arguments, **env):
        return subprocess.run([serving.PROGRAM, "doctor", *arguments], capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": self.folder.name, **env})

    def report(self, *arguments, **env):
        r = self.doctor("--json", *arguments, **env)
        report = json.loads(r.stdout)
        self.assertEqual(r.returncode, 1 if report["worst"] == "error" else 0, r.stderr)
        return report

    def orphan(self, stdin, *argv, nohup=False):
        """A process whose parent is gone, in the session of a leader that is gone too."""
        script = ("trap '' HUP; " if nohup else "") + 'exec 3<&0; "$@" >/dev/null 2>&1 <&3 & echo $!'
        started = subprocess.run(["sh", "-c", script, "sh", *argv], stdin=stdin, stdout=subprocess.PIPE, text=True,
                                 start_new_session=True, timeout=60,
                                 # These tests may run under nohup, and who ignores SIGHUP is meant to stay.
                                 preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        pid = int(started.stdout)
        self.addCleanup(lambda: alive(pid) and os.kill(pid, signal.SIGKILL))
        return pid

    def test_every_finding_is_complete(self):
        report = self.report()
        self.assertEqual(list(report), ["worst", "findings", "leftovers"])
        names = {f["name"] for f in report["findings"]}
        self.assertLessEqual({"NVIDIA driver", "CPU", "RAM", "open files", "port 8000", "port 30000", "hub cache"}, names)
        for f in report["findings"]:
            self.assertEqual(list(f), ["group", "name", "severity", "value", "why", "fix"])
            self.assertIn(f["severity"], ("ok", "info", "warning", "error"))
            self.assertTrue(f["value"], f)
            self.assertTrue(f["why"] or f["severity"] == "ok", f)
        text = self.doctor()
        self.assertIn("hub cache", text.stdout)
        self.assertNotIn("\x1b", text.stdout)

    def test_a_driver_library_that_is_none(self):
        path = os.path.join(self.folder.name, "libnvidia-ml.so.1")
        with open(path, "w") as f:
            f.write("no library")
        r = self.report(LD_LIBRARY_PATH=self.folder.name)
        self.assertIn("NVIDIA driver", {f["name"] for f in r["findings"]})

    def test_own_leftovers_are_found_and_ended_others_are_not(self):
        # A copy of the program is another executable: same name, not ours.
        copy = os.path.join(self.folder.name, "mettle")
        with open(serving.PROGRAM, "rb") as source, open(copy, "wb") as target:
            target.write(source.read())
        os.chmod(copy, 0o755)
        silent, held = os.pipe()  # nobody writes to it: who reads it waits
        self.addCleanup(os.close, silent)
        self.addCleanup(os.close, held)
        waits = ["diagnose", "-"]
        lost = self.orphan(silent, serving.PROGRAM, *waits)
        meant_to_stay = self.orphan(silent, serving.PROGRAM, *waits, nohup=True)
        another = self.orphan(silent, copy, *waits)
        child = subprocess.Popen([serving.PROGRAM, *waits], stdin=silent, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        for pid in (lost, meant_to_stay, child.pid):
            wait_for(lambda pid=pid: os.path.exists(f"/proc/{pid}/exe") and
                     os.path.samefile(f"/proc/{pid}/exe", serving.PROGRAM), "the start of a program")
        wait_for(lambda: os.path.samefile(f"/proc/{another}/exe", copy), "the start of the copy")
        found = {p["pid"] for p in self.report()["leftovers"]["processes"]}
        self.assertIn(lost, found)
        self.assertFalse(found & {meant_to_stay, another, child.pid})
        self.assertTrue(alive(lost))  # looking ends nothing
        r = self.doctor("--clean")
        self.assertIn(f"process {lost} ", r.stderr)
        self.assertFalse(alive(lost))
        self.assertTrue(alive(meant_to_stay) and alive(another) and child.poll() is None)

    def test_own_files(self):
        folder = os.path.join(self.folder.name, "mettle")
        os.makedirs(folder)
        half = os.path.join(folder, f"verdicts.json.{2 ** 22 + 5}.0.tmp")  # beyond the largest process number
        whole = os.path.join(folder, "verdicts.json")
        for path in (half, whole):
            with open(path, "w") as f:
                f.write("x")
        self.assertEqual(self.report()["leftovers"]["files"], [half])
        self.assertIn(f"{half}: removed", self.doctor("--clean").stderr)
        self.assertEqual(os.listdir(folder), ["verdicts.json"])

    def test_bad_input(self):
        for arguments in (["--nonsense"], ["word"]):
            r = self.doctor(*arguments)
            self.assertEqual(r.returncode, 2)
            self.assertEqual(r.stdout, "")


if __name__ == "__main__":
    unittest.main()
