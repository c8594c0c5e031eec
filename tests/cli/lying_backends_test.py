"""Backends that say something false about themselves, or throw where they are asked (tests/mutants/planted_server.cpp):
each is refused with a code of its own, what there is and what is needed; another serves, the program lives."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

serving.PROGRAM = os.path.join(os.path.dirname(serving.PROGRAM), "mettle_planted")
LIES = {  # name: (code, a word of have, a word of need, a word of the sentence)
    "false_targets": ("ISA_MISSING", "avx2", "avx512bf16", "instruction set"),
    "false_targets_run": ("FAULT", "SIGILL", "report", "SIGILL"),
    "false_workspace": ("OVERRUN", "", "", ""),
    "endless_workspace": ("OUT_OF_MEMORY", "", "", "memory"),
    "permits_everything": ("INCOMPLETE_WRITE", "", "", ""),
    "throws_when_asked": ("FAULT", "exception", "an answer", "planted"),
    "throws_when_listed": ("FAULT", "exception", "an answer", "planted"),
    "throws_when_planned": ("FAULT", "exception", "a result", "planted"),
    "throws_when_run": ("FAULT", "exception", "a result", "planted"),
}


class Lies(unittest.TestCase):
    env = {"PLANTED": "linear/lies", "METTLE_CPU_ISA": "avx2"}

    def test_each_is_refused_with_its_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "proofs.json")
            r = serving.run_program("prove", "--op", "linear", "--json", path, env=self.env)
            self.assertEqual(r.returncode, 1, r.stderr)
            with open(path) as f:
                entries = json.load(f)["results"]
        for name, (code, have, need, words) in LIES.items():
            # Of the tactics that this processor lacks nothing more is asked.
            mine = [e for e in entries if e["backend"] == name and (code == "ISA_MISSING" or e["verdict"] != "ISA_MISSING")]
            self.assertTrue(mine, name)
            for e in mine:
                self.assertEqual(e["verdict"], code, e)
                for text, field in ((have, "have"), (need, "need"), (words, "sentence")):
                    self.assertIn(text, e[field], e)
                self.assertTrue(e["have"] and e["sentence"], e)
        for e in entries:
            if e["backend"] not in LIES and e["verdict"] != "ISA_MISSING":
                self.assertEqual(e["verdict"], "OK", e)

    def test_another_serves(self):
        r = serving.run_program("run", "How much is 757 plus 95?", "--temperature", "0", "--no-think", env=self.env)
        self.assertEqual((r.returncode, r.stdout), (0, "852\n"), r.stderr)
        for name, (code, *_) in LIES.items():
            if code != "ISA_MISSING":  # a refusal of the device is no news
                self.assertRegex(r.stderr, f"{name} .*failed its proof and does not serve linear .*{code}")

    def test_the_table_of_candidates_shows_them(self):
        r = serving.run_program("explain", "--json", env=self.env)
        self.assertEqual(r.returncode, 0, r.stderr)
        for name in LIES:
            self.assertIn(f'"{name}"', r.stdout)

    def test_named_none_falls_back(self):
        r = serving.run_program("run", "Hi", "--fp4-gemm-backend", "throws_when_asked", env=self.env)
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertIn("throws_when_asked", r.stderr)


if __name__ == "__main__":
    serving.main()
