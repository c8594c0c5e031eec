"""`mettle inspect`: a config.json alone, the embedded model, damaged and foreign checkpoints."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving

CONFIGS = os.path.join(HERE, "..", "data", "configs")
TINY = os.path.join(HERE, "..", "..", "models", "mettle-tiny")
GPUS = ["sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121"]


class Inspect(unittest.TestCase):
    def inspect(self, *arguments, code=0):
        r = subprocess.run([serving.PROGRAM, "inspect", *arguments], capture_output=True, text=True, timeout=300)
        self.assertEqual(r.returncode, code, r.stderr)
        return r

    def json(self, *arguments):
        return json.loads(self.inspect("--json", *arguments).stdout)

    def test_configs_alone_on_every_device(self):
        for device in GPUS + ["cpu"]:
            i = self.json(os.path.join(CONFIGS, "qwen3_30b_a3b", "config.json"), "--device", device,
                          "--context-length", "4096", "--concurrency", "2")
            self.assertEqual(i["formats"], "config.json")
            self.assertEqual(i["device"]["name"], device)
            self.assertEqual(i["missing"] + i["unused"] + i["anomalies"], [])
            self.assertGreater(i["bandwidth"]["bytes_per_second"], 0)
            self.assertEqual([(b["context"], b["sequences"]) for b in i["bounds"]],
                             [(1024, 1), (1024, 2), (4096, 1), (4096, 2)])
            # Qwen3-30B-A3B: 48 layers, two vectors of 4 heads of 128 in BF16 for each token.
            self.assertEqual(i["fit"]["kv_per_token"], 48 * 2 * 4 * 128 * 2)
            self.assertEqual(i["fit"]["kv"], 2 * 4096 * i["fit"]["kv_per_token"])
            self.assertEqual(len(i["shuffle"]), 0 if device == "cpu" else 3)
            for b in i["bounds"]:
                self.assertAlmostEqual(b["step_bytes"], b["weight_bytes"] + b["state_bytes"] + b["kv_bytes"], delta=1)
                self.assertAlmostEqual(b["tokens_per_second"] * b["step_bytes"] / b["sequences"] /
                                       i["bandwidth"]["bytes_per_second"], 1, places=6)

    def test_the_story_of_the_397b_on_eight_cards(self):
        text = self.inspect(os.path.join(CONFIGS, "qwen3_5_397b_a17b"), "--device", "sm120", "--tp-size", "8",
                            "--context-length", "32768", "--concurrency", "16").stdout
        for line in ("routed experts", "gdn projections", "386.547 B", "217.43 GB",
                     "experts read of 512 in a layer: 10.0 for 1 sequence, 138.6 for 16",
                     "1 sequence at 1024 tokens", "16 sequences at 32768 tokens", "data sheet of RTX PRO 6000",
                     "copies of all layers, originals freed at the end", "vllm-project/vllm#46276"):
            self.assertIn(line, text)
        self.assertNotIn("\x1b", text)

    def test_the_embedded_model(self):
        for arguments in ([], [TINY]):
            i = self.json(*arguments, "--device", "cpu")
            self.assertEqual(i["formats"], "the checkpoint")
            self.assertEqual((i["refusal"], i["missing"], i["unused"]), ("", [], []))
            self.assertEqual(sum(c["bytes"] for c in i["contents"]), i["files_bytes"])
            self.assertTrue(i["fit"]["fits"])

    def copy(self, change_config=lambda config: None, change_shard=None):
        """The embedded model with another config, or other bytes in its first shard."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        target = os.path.join(folder.name, "m")
        shutil.copytree(TINY, target)
        with open(os.path.join(target, "config.json")) as f:
            config = json.load(f)
        change_config(config)
        with open(os.path.join(target, "config.json"), "w") as f:
            json.dump(config, f)
        if change_shard:
            path = os.path.join(target, "model-00001-of-00002.safetensors")
            with open(path, "rb") as f:
                data = bytearray(f.read())
            change_shard(data)
            with open(path, "wb") as f:
                f.write(data)
        return target

    def test_a_scale_that_is_nan(self):
        names = []

        def spoil(data):
            size = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + size])
            name = next(n for n in sorted(header) if n.endswith("weight_scale_2"))
            names.append(name)
            begin = 8 + size + header[name]["data_offsets"][0]
            data[begin:begin + 4] = struct.pack("<f", float("nan"))
        i = self.json(self.copy(change_shard=spoil), "--device", "sm90")
        found = [a for a in i["anomalies"] if a["refused"]]
        self.assertEqual([(a["first"], a["count"]) for a in found], [(names[0], 1)])
        self.assertIn("not finite", found[0]["what"])

    def test_a_cut_shard_is_an_error(self):
        folder = self.copy(change_shard=lambda data: data.__delitem__(slice(len(data) // 2, None)))
        r = self.inspect(folder, code=1)
        self.assertEqual(r.stdout, "")
        self.assertIn("safetensors", r.stderr)

    def test_an_architecture_that_is_not_known(self):
        folder = self.copy(lambda config: config.update(architectures=["NobodyForCausalLM"]))
        i = self.json(folder, "--device", "sm90")
        self.assertIn("NobodyForCausalLM", i["refusal"])
        self.assertIsNone(i["fit"])
        self.assertEqual(sum(c["bytes"] for c in i["contents"]), i["files_bytes"])
        with tempfile.TemporaryDirectory() as only:
            shutil.copy(os.path.join(folder, "config.json"), only)
            self.assertIn("NobodyForCausalLM", self.inspect(only, code=1).stderr)

    def test_bad_input(self):
        config = os.path.join(CONFIGS, "qwen3_moe_1p4b")
        for arguments, piece in ((["--device", "sm999"], "--device"), (["--tp-size", "0"], "--tp-size"),
                                 (["--concurrency", "0"], "--concurrency"), (["--context-length", "99999999"], "--context-length"),
                                 (["--context-length", "10000000"], "--context-length"), (["--nonsense"], "--nonsense")):
            r = self.inspect(config, *arguments, code=2)
            self.assertEqual(r.stdout, "")
            self.assertIn(piece, r.stderr)
        for model, piece in (("/no/such/place", "no such folder"), ("org/never-downloaded", "not downloaded")):
            self.assertIn(piece, self.inspect(model, code=1).stderr)


if __name__ == "__main__":
    unittest.main()
