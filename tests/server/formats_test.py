"""Formats that are made on request: the server says so, halves the cache's bytes and still answers; wrong words are refused."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving


NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}


class Formats(unittest.TestCase):
    def told(self, server):
        status, _, body = server.request("GET", "/v1/models")
        self.assertEqual(status, 200)
        plan = json.loads(server.request("GET", "/v1/plan")[2])
        return json.loads(body)["data"][0], plan

    def test_said_by_the_server_and_answers_stay(self):
        with serving.Server("--max-total-tokens", "4096") as server:
            model, plan = self.told(server)
            self.assertEqual((model["dense_dtype"], model["kv_cache_dtype"]), ("auto", "bf16"))
            self.assertEqual((plan["dense_dtype"], plan["kv_cache_dtype"], plan["requantised"]), ("auto", "bf16", 0))
            whole = plan["memory"]["kv_bytes"]
        with serving.Server("--max-total-tokens", "4096", "--dense-dtype", "fp8", "--kv-cache-dtype", "fp8") as server:
            model, plan = self.told(server)  # it is ready, so the canaries were answered
            self.assertEqual((model["dense_dtype"], model["kv_cache_dtype"]), ("fp8", "fp8_e4m3"))
            self.assertEqual((plan["dense_dtype"], plan["kv_cache_dtype"]), ("fp8", "fp8_e4m3"))
            self.assertGreater(plan["requantised"], 0)
            self.assertEqual(plan["kv_scaled_layers"], 0)
            self.assertEqual(2 * plan["memory"]["kv_bytes"], whole)
            self.assertIn(f"dense   fp8: {plan['requantised']} BF16 matrices requantised at load", plan["plan"])
            self.assertIn("kv      fp8_e4m3: scales of the checkpoint in 0 of 2 attention layers", plan["plan"])
            problems = [p["problem"] for p in plan["problems"] if p["op"] == "attention"]
            self.assertTrue(problems and all("kv_fp8_e4m3" in p and "fp8/fp8" in p for p in problems), problems)
            answer = json.loads(server.chat("How much is 757 plus 95?", temperature=0, max_tokens=20, **NO_THINK)[2])
            self.assertEqual(answer["choices"][0]["message"]["content"].strip(), "852")
            self.assertIn("2 of 2 attention layers have no scales of k and v in the checkpoint", server.errors())

    def run_mettle(self, *argv):
        with tempfile.TemporaryDirectory() as cache:
            return subprocess.run([serving.PROGRAM, *argv], capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "XDG_CACHE_HOME": cache})

    def test_unknown_words_list_the_known_ones(self):
        for command in ("serve", "run", "prove", "explain", "inspect"):
            for value in ("fp8_e5m2", "int8", ""):
                done = self.run_mettle(command, "--kv-cache-dtype", value)
                self.assertEqual(done.returncode, 2, done)
                for word in ("auto", "bf16", "fp8_e4m3", "fp8"):
                    self.assertIn(word, done.stderr)
            done = self.run_mettle(command, "--dense-dtype", "int4")
            self.assertEqual(done.returncode, 2, done)
            self.assertIn("{auto,fp8}", done.stderr)
        done = self.run_mettle("run", "--activation-dtype", "fp32", "--kv-cache-dtype", "bf16", "hello")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("must be auto or fp8_e4m3 with f32 activations, got bf16", done.stderr)

    def test_plans_know_the_bytes(self):
        def inspected(*flags):
            done = self.run_mettle("inspect", "--device", "sm90", "--json", *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        plain, fp8 = inspected(), inspected("--dense-dtype", "fp8", "--kv-cache-dtype", "fp8_e4m3")
        self.assertEqual(2 * fp8["fit"]["kv_per_token"], plain["fit"]["kv_per_token"])
        self.assertLess(fp8["fit"]["weights"], plain["fit"]["weights"])
        before = {(c["kind"], c["format"]): c for c in plain["contents"]}
        for c in fp8["contents"]:
            dense = c["kind"] in ("attention", "gdn projections", "output head") and c["format"] == "bf16" and c["used"]
            self.assertEqual(c["served_as"], "fp8" if dense else c["format"])
            self.assertEqual(c["read_one"] * (2 if dense else 1), before[c["kind"], c["format"]]["read_one"])
        done = self.run_mettle("explain", "--device", "sm90", "--dense-dtype", "fp8", "--kv-cache-dtype", "fp8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("kv_fp8_e4m3", done.stdout)


if __name__ == "__main__":
    serving.main()
