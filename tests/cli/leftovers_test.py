"""What the test scripts themselves leave behind: no folder and no server, however a script ends."""
import os
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving

HEAD = f"import sys\nsys.path.insert(0, {os.path.join(HERE, '..')!r})\nimport serving\n"


class Leftovers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, script):
        return subprocess.Popen([sys.executable, "-c", HEAD + script, serving.PROGRAM], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                env={**os.environ, "TMPDIR": self.folder.name})

    def left(self):
        return os.listdir(self.folder.name)

    def test_of_a_script_that_ends(self):
        for script, code in (("", 0), ("raise SystemExit(3)", 3), ("raise ValueError", 1),
                             ("assert serving.run_program('prove', '--op', 'join').returncode == 0", 0)):
            with self.start(script) as process:
                process.communicate(timeout=120)
            self.assertEqual((process.returncode, self.left()), (code, []), script)

    def test_of_a_script_that_is_ended_while_its_server_runs(self):
        # Not one call that blocks: a signal just before it is seen when it returns.
        script = ("import time\nserver = serving.Server()\nprint(server.process.pid, flush=True)\n"
                  "while True: time.sleep(0.02)")
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.start(script) as process:
                server = int(process.stdout.readline())
                self.assertEqual(len(self.left()), 1)
                process.send_signal(number)
                process.wait(120)
            self.assertNotEqual(process.returncode, 0)
            self.assertTrue(serving.ends(server), "the server of an ended script goes on")
            self.assertEqual(self.left(), [], number)

    def test_what_a_child_leaves_alone(self):
        script = ("import os\npid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\n"
                  "print(os.path.isdir(serving.Server.cache))")
        with self.start(script) as process:
            self.assertEqual(process.communicate(timeout=120)[0], "True\n")
        self.assertEqual(self.left(), [])


if __name__ == "__main__":
    serving.main()
