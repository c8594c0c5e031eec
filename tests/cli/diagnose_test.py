"""`mettle diagnose`: accuracy on whole logs and their variants, JSON, exit codes, standard input, bad input."""
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "diagnose")]
import log_variants
import serving

LOGS = os.path.join(HERE, "..", "data", "logs")
FIELDS = ["cause", "sentence", "confidence", "phase", "rank", "engine", "device", "signature", "evidence", "misleading", "remedy",
          "missing", "notes"]


class Diagnose(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def diagnose(self, *arguments, stdin=b""):
        r = subprocess.run([serving.PROGRAM, "diagnose", *arguments], input=stdin, capture_output=True, timeout=300)
        return r.returncode, r.stdout.decode(), r.stderr.decode()

    def write(self, name, data):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return path

    def test_self_test_is_all_right(self):
        code, out, err = self.diagnose("--self-test", LOGS)
        self.assertEqual(code, 0, out + err)
        scores = re.findall(r"(\d+) of (\d+) right \((.*) %\), (\d+) of (\d+) healthy logs called broken", out)
        self.assertEqual(len(scores), 2, out)
        for right, cases, percent, broken, healthy in scores:
            self.assertEqual((right, percent, broken), (cases, "100.0", "0"))
        self.assertGreaterEqual(int(scores[0][1]), 83 * 3)
        self.assertGreaterEqual(int(scores[1][1]), 40)

    def test_whole_logs_are_what_they_should_be(self):
        names = [name for name in os.listdir(LOGS) if name.endswith(".log")]
        self.assertGreaterEqual(len(names), 40)
        real = [name for name in names if name.startswith("real-")]
        self.assertGreaterEqual(len([name for name in real if "healthy" not in name]), 12)
        for of in ("llama", "mettle", "h200"):
            self.assertTrue([name for name in real if name.startswith(f"real-{of}-")], of)
        for name in names:
            with open(os.path.join(LOGS, name), errors="replace") as f:
                self.assertIn(len(f.readlines()), range(30, 301), name)

    def test_a_wrong_label_fails_the_self_test(self):
        self.write("a.log", "RuntimeError: CUDA error: misaligned address\n")
        self.write("expected.json", '{"a.log": {"cause": "VRAM_OOM"}}')
        code, out, err = self.diagnose("--self-test", self.folder.name)
        self.assertEqual(code, 1)
        self.assertIn("wrong  a.log: must be VRAM_OOM, is KERNEL_FAULT", out)

    def test_what_has_no_end_or_no_writer_ends(self):
        """Devices, files larger than any log, a pipe that nobody writes to; one with a late writer is read."""
        for device in ("/dev/zero", "/dev/urandom"):
            self.assertEqual(self.diagnose(device),
                             (2, "", f"error: {device}: must be a log file, a pipe or a folder, is a device\n"))
        with open("/dev/zero", "rb") as zero:
            r = subprocess.run([serving.PROGRAM, "diagnose", "-"], stdin=zero, capture_output=True, text=True, timeout=300)
            self.assertEqual((r.returncode, r.stderr),
                             (2, "error: -: must be a log file, a pipe or a folder, is a device\n"))
        self.assertEqual(self.diagnose("/dev/null")[::2], self.diagnose(self.write("empty.log", ""))[::2])
        large = self.write("large.log", "")
        try:
            os.truncate(large, (1 << 40) + 1)
        except OSError:
            pass  # a file system that holds no such file
        else:
            self.assertEqual(self.diagnose(large)[::2],
                             (2, f"error: {large}: must be at most {1 << 40} bytes, is {(1 << 40) + 1}\n"))
        pipe = os.path.join(self.folder.name, "pipe")
        os.mkfifo(pipe)
        self.assertEqual(self.diagnose(pipe), (2, "", f"error: {pipe}: nobody opened this pipe for writing within 10 s\n"))
        process = subprocess.Popen([serving.PROGRAM, "diagnose", pipe], stdout=subprocess.PIPE, text=True)
        with open(pipe, "w") as writer:  # opens when the reader does
            writer.write("RuntimeError: CUDA error: misaligned address\n")
        self.assertIn("KERNEL_FAULT", process.communicate(timeout=300)[0])
        self.assertEqual(process.returncode, 1)
        process = subprocess.Popen([serving.PROGRAM, "diagnose", pipe], stdout=subprocess.DEVNULL)
        with open(pipe, "w"):  # and stays silent
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), -signal.SIGINT)

    def test_variants(self):
        count = log_variants.Variants(LOGS, self.folder.name).write(seeds=3)
        code, out, err = self.diagnose("--self-test", self.folder.name)
        right, cases, _, broken, healthy = re.findall(r"(\d+) of (\d+) right \((.*) %\), (\d+) of (\d+)", out)[1]
        self.assertEqual(int(cases), count)
        self.assertGreaterEqual(count, 900)
        self.assertGreaterEqual(int(healthy), 90)
        self.assertEqual(broken, "0", out)
        kinds = {}
        wrong = set(re.findall(r"^wrong  (\S+?): ", out, re.M))
        with open(os.path.join(self.folder.name, "expected.json")) as f:
            for name in json.load(f):
                kinds.setdefault(name.split("-")[0], []).append(name in wrong)
        for kind, faults in kinds.items():
            with self.subTest(kind):
                self.assertGreaterEqual(1 - sum(faults) / len(faults), 0.95, out)
        print(f"variants: {right} of {cases} right; " + ", ".join(f"{k} {len(v) - sum(v)}/{len(v)}" for k, v in sorted(kinds.items())))

    def test_json_and_exit_code(self):
        log = os.path.join(LOGS, "vllm-rank-3-killed.log")
        code, out, err = self.diagnose(log, "--json")
        self.assertEqual((code, err), (1, ""))
        d = json.loads(out)
        self.assertEqual(list(d), FIELDS)
        self.assertEqual((d["cause"], d["rank"], d["phase"], d["engine"]), ("HOST_OOM", "3", "load", "vllm"))
        with open(log, newline="") as f:
            self.assertIn(d["evidence"][0]["text"], f.read().split("\n")[d["evidence"][0]["line"] - 1])
        self.assertTrue(d["remedy"] and d["missing"] and d["misleading"])
        code, out, err = self.diagnose(os.path.join(LOGS, "vllm-tuning-skips-healthy.log"), "--json")
        self.assertEqual((code, json.loads(out)["cause"]), (0, "HEALTHY"))

    def test_bytes_that_are_no_text_are_not_called_healthy(self):
        noise = bytes(range(256)) * 40
        zeros = gzip.compress(bytes(1 << 20))
        for name, data in ("noise", noise), ("zeros.gz", zeros):
            code, out, _ = self.diagnose(self.write(name, data), "--json")
            d = json.loads(out)
            self.assertEqual((code, d["cause"]), (1, "UNKNOWN"), name)
            self.assertIn("no text", d["sentence"])
        colour = b"\x1b[32mINFO\x1b[0m:\tstarted\r\nINFO: Application startup complete.\n"
        utf16 = "INFO: started\nINFO: Application startup complete.\n".encode("utf-16")
        for name, data in ("colour.log", colour), ("utf16.log", utf16):
            self.assertEqual(self.diagnose(self.write(name, data))[0], 0, name)

    def test_standard_input_gzip_folder_and_kernel_log_are_the_same(self):
        text = b"INFO Loading safetensors checkpoint shards: 40% Completed\nKilled\n"
        kernel = self.write("dmesg.txt", "[99.0000001] Out of memory: Killed process 7 (python3)\n")
        os.mkdir(os.path.join(self.folder.name, "d"))
        plain, packed = self.write("d/a.log", text), self.write("a.log.gz", gzip.compress(text))
        for arguments, stdin in (([plain], b""), ([packed], b""), (["-"], text), ([os.path.dirname(plain)], b"")):
            code, out, err = self.diagnose(*arguments, "--json", "--exit-code", "137", "--dmesg", kernel, stdin=stdin)
            self.assertEqual(code, 1, err)
            self.assertEqual(json.loads(out)["cause"], "HOST_OOM")
            self.assertEqual(json.loads(out)["evidence"][0]["file"], kernel)
            # The log after the option that takes a file.
            self.assertEqual(self.diagnose("--json", "--exit-code", "137", "--dmesg", kernel, *arguments, stdin=stdin),
                             (code, out, err))
        code, out, err = self.diagnose("-", stdin=text)
        self.assertTrue(out.startswith("UNKNOWN"), out)
        self.assertIn('"Killed" is only SIGKILL', out)
        self.assertNotIn("\x1b", out)

    def test_list(self):
        code, out, err = self.diagnose("--list")
        self.assertEqual(code, 0)
        self.assertGreaterEqual(len(re.findall(r"^S\d+ ", out, re.M)), 83)

    def test_bad_input_is_told_with_values(self):
        cut = self.write("cut.gz", gzip.compress(b"a" * 1000)[:-3] + b"\0\0\0")
        for arguments, code, text in (
                ([], 2, "LOG: must name a log file"),
                (["/no/such/file"], 2, "/no/such/file: must be a log file or a folder: No such file or directory"),
                ([cut], 2, "cut.gz: must be a whole gzip file, at byte"),
                ([LOGS, "--device", "hopper"], 2, "--device: must be an SM such as sm120 or 12.0, got hopper"),
                ([LOGS, "--exit-code", "300"], 2, "300"),
                ([LOGS, "--exit-code", "x"], 2, "x"),
                ([LOGS, "--silent", "0"], 2, "0"),
                ([LOGS, "--dmesg", "/no/kernel"], 2, "/no/kernel: must be a log file"),
                (["--self-test", "/no/folder"], 2, "/no/folder: must be a folder of logs with an expected.json"),
                (["--sign"], 2, "--sign"),
                ([""], 2, "LOG")):
            with self.subTest(arguments):
                got, out, err = self.diagnose(*arguments)
                self.assertEqual(got, code, out + err)
                self.assertIn(text, err)

    def test_help(self):
        code, out, err = self.diagnose("--help")
        self.assertEqual(code, 0)
        for word in ("--json", "--exit-code", "--dmesg", "--device", "--silent", "--list", "--self-test", "Examples:"):
            self.assertIn(word, out)


if __name__ == "__main__":
    serving.main()
