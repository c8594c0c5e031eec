"""Ops are named ranges for NVIDIA's profilers: a build with CUDA runs on the CPU under a recorder that NVTX takes for
one. tests/cuda/nvtx_test.py build-cuda/mettle (the recorder stands beside it, in tests/cuda)."""
import collections
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "tests"))
import serving

RECORDER = os.path.join(os.path.dirname(serving.PROGRAM), "tests/cuda/nvtx_recorder.so")
OPS = {"embed", "join", "linear", "moe", "attention", "gdn", "sample"}


class Ranges(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ranges")
            process = subprocess.Popen([serving.PROGRAM, "run", "What is 17 + 25?", "--device", "cpu", "--temperature", "0",
                                        "--no-think", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache,
                                            "NVTX_INJECTION64_PATH": RECORDER, "NVTX_RECORDER_FILE": path})
            cls.out, cls.err = process.communicate(timeout=300)
            cls.code = process.returncode
            cls.threads = collections.defaultdict(list)  # of the program itself, its proofs' processes left out
            if os.path.exists(path):
                with open(path) as f:
                    for line in f:
                        pid, thread, event = line.rstrip("\n").split(" ", 2)
                        if int(pid) == process.pid:
                            cls.threads[int(thread)].append(event)

    def setUp(self):
        self.assertEqual(self.code, 0, self.err)
        self.assertTrue(self.threads, "nothing was recorded")

    def test_ranges_are_balanced_and_none_in_another(self):
        for events in self.threads.values():
            self.assertEqual(len(events) % 2, 0)
            self.assertTrue(all(e != "-" for e in events[::2]) and all(e == "-" for e in events[1::2]), events[:20])

    def test_every_op_is_there_and_nothing_else(self):
        self.assertEqual({e[1:] for events in self.threads.values() for e in events if e != "-"}, OPS)

    def test_every_step_has_the_ranges_of_its_layers(self):
        answer = json.loads(self.out)
        self.assertEqual(answer["content"], "42")
        with open(os.path.join(ROOT, "models/mettle-tiny/config.json")) as f:
            config = json.load(f)
        kinds = collections.Counter(config.get("text_config", config)["layer_types"])
        layers = sum(kinds.values())
        steps, sampled = [], 0
        for event in self.all_of_the_loop():
            if event == "embed":
                steps.append(collections.Counter())
            steps[-1][event] += 1
        for step in steps:
            self.assertEqual({name: step[name] for name in ("embed", "moe", "attention", "gdn", "join")},
                             {"embed": 1, "moe": layers, "attention": kinds["full_attention"],
                              "gdn": kinds["linear_attention"], "join": 2 * layers + 1})
            self.assertLessEqual(step["linear"], 1)
            sampled += step["sample"]
        self.assertEqual(sum(step["moe"] for step in steps), layers * len(steps))
        # The answer's own steps are the last: one for the prompt and its token, one for each of the others.
        tokens = answer["usage"]["completion_tokens"]
        self.assertGreater(tokens, 1)
        self.assertGreaterEqual(sampled, tokens)
        for step in steps[-tokens:]:
            self.assertEqual((step["linear"], step["sample"]), (1, 1))

    def all_of_the_loop(self):
        """Names, in their order: all ops of a step run on one thread, at the start and in the loop on two."""
        for events in self.threads.values():
            yield from (e[1:] for e in events if e != "-")


if __name__ == "__main__":
    if not os.path.exists(RECORDER):
        sys.exit(f"{RECORDER}: not built")
    serving.main()
