"""`mettle explain`: every candidate with its verdict for any device, from config.json alone; the words of other engines."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving

CONFIGS = os.path.join(HERE, "..", "data", "configs")
MODELS = {"qwen3_5_35b_a3b": {"attention", "embed", "gdn", "join", "linear", "moe", "sample"},
          "qwen3_5_397b_a17b": {"attention", "embed", "gdn", "join", "linear", "moe", "sample"},
          "qwen3_30b_a3b": {"attention", "embed", "join", "linear", "moe", "sample"},
          "glm5": {"attention", "embed", "indexer", "join", "linear", "mlp", "moe", "sample"}}
GPUS = ["sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121"]
REFUSALS = {"WRONG_SM", "NOT_BUILT", "ISA_MISSING", "SMEM_TOO_SMALL", "SHAPE_UNSUPPORTED", "FORMAT_UNSUPPORTED",
            "SEMANTICS_DIFFER"}
PLANNED = {"w4a4_mma", "jit", "cublaslt", "cudnn"}
VERDICT = ["verdict", "have", "need", "sentence", "remedy"]


class Explain(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def explain(self, *arguments, **env):
        return subprocess.run([serving.PROGRAM, "explain", *arguments], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "XDG_CACHE_HOME": self.folder.name, **env})

    def json(self, *arguments, **env):
        r = self.explain("--json", *arguments, **env)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout)

    def test_real_shapes_on_every_device_from_their_config_alone(self):
        for model, ops in MODELS.items():
            for device in GPUS + ["cpu"]:
                e = self.json(os.path.join(CONFIGS, model, "config.json"), "--device", device)
                self.assertEqual(list(e), ["model", "architecture", "formats", "device", "cuda_targets", "build",
                                           "candidates", "words"])
                self.assertEqual(e["formats"], "config.json")
                self.assertEqual(e["device"]["name"], device)
                self.assertEqual({c["op"] for c in e["candidates"]}, ops, (model, device))
                for c in e["candidates"]:
                    self.assertEqual(list(c), ["op", "problem", "backend", "tactic", "numerics"] + VERDICT)
                    self.assertIn(c["verdict"], REFUSALS | {"UNPROVED"}, c)
                    self.assertTrue(c["remedy"], c)
                    if c["verdict"] != "UNPROVED":
                        self.assertTrue(c["have"] and c["need"] and c["sentence"], c)
                # Each problem has the plain backend, and no two lines of one tactic.
                for problem in {c["problem"] for c in e["candidates"]}:
                    rows = [(c["backend"], c["tactic"]) for c in e["candidates"] if c["problem"] == problem]
                    self.assertEqual(len(rows), len(set(rows)), problem)
                    self.assertIn("reference", {b for b, _ in rows})

    def test_of_an_architecture_that_is_planned_every_op_says_what_it_lacks(self):
        config = os.path.join(CONFIGS, "glm5")
        for device in ("sm120", "cpu"):
            e = self.json(config, "--device", device)
            self.assertEqual(e["architecture"], "glm_moe_dsa, planned")
            for op in ("indexer", "attention", "mlp", "moe"):
                row, = (c for c in e["candidates"] if c["op"] == op)
                self.assertEqual((row["verdict"], row["have"]), ("NOT_BUILT", "no code"))
                self.assertTrue(row["remedy"].startswith("planned: "), row)
            for op in ("embed", "join", "linear", "sample"):  # those exist: their own backends answer
                self.assertIn("UNPROVED" if device == "cpu" else "NOT_BUILT" if not e["cuda_targets"] else "UNPROVED",
                              {c["verdict"] for c in e["candidates"] if c["op"] == op})
            for word in e["words"]:  # nothing serves, whatever it is called
                if word["flag"] in ("--attention-backend", "--moe-runner-backend"):
                    self.assertNotIn(word["verdict"], ("OK", "UNPROVED"), word)
        text = self.explain(config, "--device", "sm120").stdout
        self.assertIn("latent attention: 576 values a token in the cache for all 64 heads", text)
        self.assertIn("no candidate for attention, ", text)
        r = subprocess.run([serving.PROGRAM, "prove", config, "--load-format", "dummy"], capture_output=True, text=True,
                           timeout=600, env={**os.environ, "XDG_CACHE_HOME": self.folder.name})
        self.assertEqual(r.returncode, 1, r)
        self.assertIn("`mettle explain` says which ops it lacks", r.stderr)

    def test_what_the_lists_of_backends_have_is_in_the_table(self):
        ops = os.path.join(HERE, "..", "..", "src", "ops")
        for op in ("moe", "linear", "attention", "gdn"):
            with open(os.path.join(ops, op + ".def")) as f:
                lines = re.findall(r"^BACKEND\((\w+)\)", f.read(), re.M)
            for device, count in (("cpu", sum(not n.startswith("cuda_") for n in lines)),
                                  ("sm90", sum(n.startswith("cuda_") for n in lines))):
                e = self.json(os.path.join(CONFIGS, "qwen3_5_35b_a3b"), "--device", device)
                built = {c["backend"] for c in e["candidates"] if c["op"] == op} - PLANNED
                self.assertEqual(len(built), count, (op, device))

    def test_a_planned_backend_without_code_is_not_built(self):
        config = os.path.join(CONFIGS, "qwen3_5_397b_a17b")
        for device, verdict, have in (("sm120", "NOT_BUILT", "no code"), ("sm90", "WRONG_SM", "sm90")):
            row, = (c for c in self.json(config, "--device", device)["candidates"] if c["backend"] == "w4a4_mma")
            self.assertEqual((row["op"], row["verdict"], row["have"]), ("moe", verdict, have))
            self.assertTrue(row["need"] and row["remedy"], row)
        self.assertEqual({c["backend"] for c in self.json(config, "--device", "cpu")["candidates"]} & PLANNED, set())
        r = subprocess.run([serving.PROGRAM, "run", "--moe-runner-backend", "w4a4_mma", "hi"], capture_output=True,
                           text=True, timeout=600, env={**os.environ, "XDG_CACHE_HOME": self.folder.name})
        self.assertEqual((r.returncode, r.stdout), (1, ""), r.stderr)
        self.assertIn("w4a4_mma", r.stderr)

    def test_a_remedy_names_no_backend_that_is_refused_itself(self):
        e = self.json(os.path.join(CONFIGS, "qwen3_5_397b_a17b"), "--device", "sm120")
        refused = {c["verdict"] for c in e["candidates"] if (c["op"], c["backend"]) == ("attention", "flash")}
        word, = (w for w in e["words"] if (w["flag"], w["word"]) == ("--attention-backend", "fa4"))
        self.assertEqual("flash" in word["remedy"], not refused & {"SMEM_TOO_SMALL", "SHAPE_UNSUPPORTED"}, word)
        # Backends without code say what to use instead: not what cannot take this model's experts.
        moe = {c["backend"]: c for c in e["candidates"] if c["op"] == "moe"}
        self.assertEqual(moe["fused_small"]["verdict"], "SHAPE_UNSUPPORTED")
        self.assertEqual(moe["jit"]["remedy"], "use w4a16_mma, tiles or auto")

    def test_what_to_do_stands_once(self):
        for device in ("cpu", "sm120"):
            e, text = self.json("--device", device), self.explain("--device", device).stdout
            under = text[text.index("verdict  ", text.index("words of other engines")):]
            table, below = under.split("\n\n", 1)
            self.assertNotIn(" or auto", table)
            refused = {(w["flag"], w["verdict"], w["remedy"]) for w in e["words"] if not w["backend"]}
            rows = below[:below.index("\n\n")].splitlines()
            self.assertEqual(rows[0].split(), ["flag", "verdict", "what", "to", "do"])
            told, flag = [], ""
            for row in rows[1:]:
                cells = re.split(r" {2,}", row)
                flag = cells[0] or flag
                told.append((flag, *cells[1:]))
            self.assertEqual(sorted(told), sorted(refused), "each once, and none left out")

    def test_prebuilt_kernels_of_sm100_are_refused_on_sm120_with_a_remedy(self):
        config = os.path.join(CONFIGS, "qwen3_5_397b_a17b")
        words = {(w["flag"], w["word"]): w for w in self.json(config, "--device", "sm120")["words"]}
        w = words["--moe-runner-backend", "flashinfer_trtllm"]
        self.assertEqual((w["verdict"], w["have"], w["need"], w["backend"]), ("WRONG_SM", "sm120", "sm100 or sm103", ""))
        self.assertIn("prebuilt", w["sentence"])
        self.assertIn("tiles", w["remedy"])
        self.assertEqual(words["--moe-runner-backend", "marlin"]["backend"], "w4a16_mma")
        text = self.explain(config, "--device", "sm120")
        self.assertEqual(text.returncode, 0, text.stderr)
        line = next(x for x in text.stdout.splitlines() if " flashinfer_trtllm " in x)
        for part in ("WRONG_SM", "sm120", "sm100 or sm103"):
            self.assertIn(part, line)
        self.assertRegex(text.stdout, r"\n--moe-runner-backend +WRONG_SM +use w4a16_mma, tiles or auto\n")
        self.assertNotIn("\x1b", text.stdout)
        words = {(w["flag"], w["word"]): w for w in self.json(config, "--device", "sm100")["words"]}
        self.assertEqual(words["--moe-runner-backend", "flashinfer_trtllm"]["verdict"], "NOT_BUILT")

    def test_proofs_of_this_machine_are_shown(self):
        before = self.json("--device", "cpu")
        self.assertEqual({c["verdict"] for c in before["candidates"] if c["op"] == "join"} - REFUSALS, {"UNPROVED"})
        r = subprocess.run([serving.PROGRAM, "prove", "--op", "join", "--device", "cpu"], capture_output=True, text=True,
                           timeout=600, env={**os.environ, "XDG_CACHE_HOME": self.folder.name})
        self.assertEqual(r.returncode, 0, r.stderr)
        after = self.json("--device", "cpu")
        self.assertEqual({c["verdict"] for c in after["candidates"] if c["op"] == "join"} - REFUSALS, {"OK"})
        self.assertEqual({c["verdict"] for c in after["candidates"] if c["op"] == "moe"} - REFUSALS, {"UNPROVED"})

    def test_an_absent_instruction_set_is_said(self):
        e = self.json("--device", "cpu", METTLE_CPU_ISA="scalar")
        missing = [c for c in e["candidates"] if c["verdict"] == "ISA_MISSING"]
        self.assertTrue(missing)
        self.assertTrue(all(c["have"] == "scalar" and c["need"] for c in missing))

    def test_ranks_are_cut_as_serving_cuts_them(self):
        config = os.path.join(CONFIGS, "qwen3_30b_a3b")
        one, four = (self.json(config, "--device", "sm90", "--tp-size", n) for n in ("1", "4"))
        problems = [{c["problem"] for c in e["candidates"] if c["op"] == "moe"} for e in (one, four)]
        self.assertFalse(problems[0] & problems[1])

    def test_codes(self):
        r = self.explain("--codes", "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        codes = json.loads(r.stdout)
        self.assertEqual(len({c["code"] for c in codes}), len(codes))
        text = self.explain("--codes").stdout
        with open(os.path.join(HERE, "..", "..", "docs", "proofs.md")) as f:
            docs = f.read()
        rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \| (.*?) \| ?(.*?) ?\|$", docs, re.M)
        self.assertEqual(rows, [(c["code"], "" if c["code"] == "OK" else "refusal" if c["refusal"] else "failure",
                                 c["meaning"], c["remedy"]) for c in codes])
        for c in codes:
            self.assertRegex(text, rf"(?m)^{c['code']} ")

    def test_bad_input(self):
        unknown = os.path.join(self.folder.name, "config.json")
        for arguments, code, says in (
                (["--device", "sm75"], 2, "sm80, sm86, sm89, sm90, sm100, sm103, sm120, sm121, cpu"),
                (["--device", ""], 2, "--device"), (["--device", "gpu"], 2, "gpu"), (["--device", "cuda:x"], 2, "cuda:x"),
                (["--nonsense"], 2, "--nonsense"), (["a", "b"], 2, "one argument too many"), ([""], 2, "must not be empty"),
                (["/no/such/model"], 1, "/no/such/model"), (["--tp-size", "0"], 2, "0"),
                (["--load-format", "gguf"], 2, "gguf")):
            r = self.explain(*arguments)
            self.assertEqual(r.returncode, code, (arguments, r))
            self.assertIn(says, r.stderr)
            self.assertEqual(r.stdout, "")
        for text, says in (("", "config.json"), ("[]", "config.json"), ("{", "config.json"),
                           ('{"architectures": ["Llama4ForCausalLM"], "model_type": "llama4"}', "Qwen3MoeForCausalLM"),
                           ('{"architectures": ["GlmMoeDsaForCausalLM"]}', "config.hidden_size"),
                           ('{"architectures": ["GlmMoeDsaForCausalLM"], "hidden_size": 0}', "config.hidden_size"),
                           ('{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": -1}', "config.vocab_size")):
            with open(unknown, "w") as f:
                f.write(text)
            r = self.explain(unknown, "--device", "sm120")
            self.assertEqual(r.returncode, 1, (text, r))
            self.assertIn(says, r.stderr)
            self.assertEqual(r.stdout, "")

    def test_a_word_that_cannot_be_followed_starts_no_server(self):
        for flag, word, code, says in (
                ("--moe-runner-backend", "flashinfer_trtllm", 1, "WRONG_SM"),
                ("--fp4-gemm-backend", "flashinfer-cudnn", 1, "sm120"),
                ("--attention-backend", "FA3", 1, "have cpu"),
                ("--linear-attn-backend", "triton", 1, "use cpu"),
                ("--moe-runner-backend", "tiles", 1, "no backend for cpu, which has cpu_gemv"),
                ("--moe-runner-backend", "fastest", 2, "flashinfer_trtllm"),
                ("--moe-runner-backend", "", 2, "must be auto")):
            for command in (["serve", "--port", "0"], ["run", "hello"]):
                r = serving.run_program(*command, "--device", "cpu", flag, word)
                self.assertEqual(r.returncode, code, (command, flag, word, r))
                self.assertIn(says, r.stderr)
                self.assertEqual(r.stdout, "")

    def test_a_word_of_the_same_method_serves_and_is_said_once(self):
        r = serving.run_program("run", "--device", "cpu", "--attention-backend", "intel_amx", "What is 17 + 25?")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout.strip(), "42")
        self.assertEqual(r.stderr.count("served by cpu, the same method"), 1, r.stderr)


if __name__ == "__main__":
    serving.main()
