"""`tools/gpu_check` with programs that only say what they are told: what it writes, and what it does not let pass."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving

ROOT = os.path.join(HERE, "..", "..")
# Answers of the fakes stand in the folder that holds them: NAME.json, and NAME.code where it is not 0. `inspect` is the
# real program's.
FAKE = """#!/bin/bash
here=$(dirname "$0"); name=$(basename "$0")
if [ "$name" = mettle ] && [ "$1" = inspect ]; then [ -e "$here/mute" ] && exit 1; exec "{real}" "$@"; fi
while [ $# -gt 0 ]; do [ "$1" = --json ] && cp "$here/$name.json" "$2"; shift; done
echo "$name speaks"
exit "$(cat "$here/$name.code" 2>/dev/null || echo 0)"
"""
SMI = """#!/bin/bash
case "$*" in *compute_cap*) echo 9.0 ;; *) echo "NVIDIA H200, 580.1, 700.00 W, 1980 MHz" ;; esac
"""
PROOF = {"op": "moe", "backend": "tiles", "tactic": "mma", "verdict": "OK", "comparisons": 7, "sentence": ""}


def bench(decode, parts, free=10):
    return {"decode_tokens_s_by_rows": decode, "experts_of_independent_rows": parts, "prefill_tokens": 8192,
            "prefill_tokens_s": 35000.0, "load_seconds": 6.5, "weight_bytes": 21e9,
            "plan": f"plan of x: 40 layers, context {16 * free}, steps of 2048 rows\n  weights 5 MiB\n"
                    f"  kv      {free - 6} MiB ({free} blocks of 16 tokens)\n  total   {free - 1} MiB of {free} MiB available\n"
                    "backends\n  moe: tiles/mma\n"}


class GpuCheck(unittest.TestCase):
    def check(self, *only, decode=None, parts=None, proof=None, code=0, free=10, mute=False):
        """(exit code, output, results.json)."""
        decode = decode or {"8": 2500.0, "1": 630.0}
        with tempfile.TemporaryDirectory() as folder:
            for name in ("mettle", "offline_bench"):
                self.write(folder, name, FAKE.format(real=serving.PROGRAM), 0o755)
            self.write(folder, "nvidia-smi", SMI, 0o755)
            self.write(folder, "mettle.json", json.dumps({"results": [{**PROOF, **(proof or {})}]}))
            self.write(folder, "offline_bench.json", json.dumps(bench(decode, parts or dict.fromkeys(decode, 0.97), free)))
            self.write(folder, "offline_bench.code", str(code))
            if mute:
                self.write(folder, "mute", "")
            out = os.path.join(folder, "out")
            r = subprocess.run([sys.executable, os.path.join(ROOT, "tools/gpu_check"), out, "--programs", folder, "--commit",
                                "abc1234", "--only", *only], capture_output=True, text=True, timeout=120,
                               stdin=subprocess.DEVNULL,
                               env={**os.environ, "PATH": folder + ":" + os.environ["PATH"], "XDG_CACHE_HOME": folder})
            with open(os.path.join(out, "results.json")) as f:
                return r.returncode, r.stdout + r.stderr, json.load(f)

    def write(self, folder, name, text, mode=0o644):
        path = os.path.join(folder, name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, mode)

    def test_results_say_where_when_what_and_how_far_from_the_bound(self):
        code, said, r = self.check("prove", "bench")
        self.assertEqual((code, r["failed"]), (0, []), said)
        self.assertEqual((r["device"], r["driver"], r["commit"], r["command"]), ("NVIDIA H200", "580.1", "abc1234", "tools/gpu_check"))
        self.assertRegex(r["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertRegex(r["plan_hash"], r"^[0-9a-f]{16}$")
        by_name = {x["name"]: x for x in r["results"]}
        self.assertEqual({"value", "unit", "bound", "note", "name"}, set(by_name["35b_decode_b1"]))
        self.assertEqual(by_name["35b_decode_b8"]["value"], 2500)
        self.assertIn("0.97 of the experts", by_name["35b_decode_b8"]["note"])
        # 2.39 GB a step at 4.8 TB/s: `mettle inspect`.
        self.assertAlmostEqual(by_name["35b_decode_b1"]["bound"], 2009, delta=1)
        self.assertGreater(by_name["35b_decode_b8"]["bound"], 2 * 2009)
        self.assertEqual(by_name["35b_prefill_8k"]["value"], 35000)
        self.assertIn("1 of 1 proved", by_name["prove_35b_s"]["note"])
        self.assertEqual(self.check("bench", free=11)[2]["plan_hash"], r["plan_hash"])  # what is free is no part of it

    def test_a_decode_that_reads_too_few_experts_does_not_count(self):
        code, said, r = self.check("bench", parts={"1": 1.0, "8": 0.89})
        self.assertEqual(code, 1, said)
        self.assertIn("8 rows read 0.89 of the experts", r["failed"][0])
        self.assertEqual(self.check("bench", parts={"1": 1.0})[0], 1)

    def test_a_card_whose_bound_is_not_told_is_a_failure(self):
        code, said, r = self.check("bench", mute=True)
        self.assertEqual(code, 1, said)
        self.assertIn("no bound of 1 rows on sm90", r["failed"][0])

    def test_results_are_written_where_the_script_itself_fails(self):
        code, said, r = self.check("prove", "bench", parts=3)  # no table of parts: not foreseen
        self.assertEqual((code, r["failed"]), (1, ["gpu_check ended early"]), said)
        self.assertIn("prove_35b_s", [x["name"] for x in r["results"]])

    def test_more_rows_may_not_be_slower(self):
        code, said, r = self.check("bench", decode={"1": 630.0, "8": 629.0})
        self.assertEqual(code, 1, said)
        self.assertIn("8 rows are slower than fewer", r["failed"][0])

    def test_a_program_that_fails_is_named_and_results_are_written(self):
        code, said, r = self.check("bench", code=9)
        self.assertEqual((code, r["failed"], r["results"]), (1, ["bench_35b"], []), said)
        self.assertIn("offline_bench speaks", said)

    def test_a_kernel_that_is_refused_is_told_with_its_sentence(self):
        code, said, r = self.check("prove", proof={"verdict": "WRONG_OUTPUT", "sentence": "column 3 is 2, must be 1"})
        self.assertIn("moe tiles mma: WRONG_OUTPUT: column 3 is 2, must be 1", said)
        self.assertIn("0 of 1 proved", r["results"][0]["note"])


if __name__ == "__main__":
    serving.main()
