"""`scripts/check` names each kind of fault: includes and links against the direction, backends, format, ledger, links."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving

ROOT = os.path.join(HERE, "..", "..")
# A small tree that is all right.
TREE = {
    "src/base/error.h": "#pragma once\n",
    "src/base/CMakeLists.txt": "mettle_folder(base DEPS fmt::fmt)\n",
    "src/ops/oracle_moe.cpp": '#include "base/error.h"\n',
    "src/ops/CMakeLists.txt": "mettle_folder(ops DEPS mettle_tensor mettle_base TEST_DEPS mettle_prove)\n",
    "src/ops/moe.def": "BACKEND(reference)\n",
    "src/ops/cpu/moe_reference.cpp": "extern const Backend<MoeOp> moe_reference = {};\n",
    "src/ops/moe_test.cpp": "TEST(Moe, IsRight) {}\n",
    "tests/ledger/ops.md": "| demand | test | how it was seen to fail |\n| --- | --- | --- |\n"
                           "| right | `Moe.IsRight`, `src/ops/moe.def::reference` | planted |\n",
    "README.md": "[ops](tests/ledger/ops.md) [elsewhere](https://example.org)\n",
}


class Check(unittest.TestCase):
    def check(self, change=None):
        """(exit code, standard error, last line) of the check of the tree with some files changed."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**TREE, **(change or {})}.items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as f:
                    f.write(text)
            os.makedirs(os.path.join(folder, "scripts"))
            shutil.copy(os.path.join(ROOT, "scripts", "check"), os.path.join(folder, "scripts", "check"))
            shutil.copy(os.path.join(ROOT, ".clang-format"), os.path.join(folder, ".clang-format"))
            subprocess.run(["git", "init", "-q", folder], check=True, stdin=subprocess.DEVNULL)
            r = subprocess.run([os.path.join(folder, "scripts", "check")], capture_output=True, text=True, timeout=120,
                               stdin=subprocess.DEVNULL)
            return r.returncode, r.stderr, r.stdout

    def refused(self, name, text, *words):
        code, err, out = self.check({name: text})
        self.assertEqual(code, 1, out + err)
        self.assertTrue(out.startswith("check: 1 errors"), out + err)
        for word in words:
            self.assertIn(word, err)

    def test_the_table_of_figures_is_that_of_the_results(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.join(ROOT, "bench/results"), os.path.join(folder, "bench/results"))
            os.makedirs(os.path.join(folder, "tools"))
            shutil.copy(os.path.join(ROOT, "tools/readme_table"), os.path.join(folder, "tools"))
            readme = os.path.join(folder, "README.md")
            right = open(os.path.join(ROOT, "README.md"), encoding="utf-8").read()

            def told(text, flag="--check"):
                with open(readme, "w", encoding="utf-8") as f:
                    f.write(text)
                r = subprocess.run([sys.executable, os.path.join(folder, "tools/readme_table"), flag], capture_output=True,
                                   text=True, timeout=60, stdin=subprocess.DEVNULL)
                return r.returncode, r.stderr

            self.assertEqual(told(right), (0, ""))
            at = right.index("/ 13,614 |")
            wrong = right[:at] + "/ 14,614 |" + right[at + 10:]
            code, said = told(wrong)
            self.assertEqual(code, 1)
            self.assertIn("is not that of bench/results", said)
            self.assertEqual(told(wrong, "--write"), (0, ""))
            self.assertEqual(open(readme, encoding="utf-8").read(), right)
            without = right.replace("<!-- made by tools/readme_table -->\n", "")
            self.assertEqual(told(without, "--write")[0], 1)
            self.assertEqual(open(readme, encoding="utf-8").read(), without)
            os.remove(os.path.join(folder, "bench/results/2026-11-30-h200-real.json"))
            self.assertIn("2026-11-30-h200-real.json: No such file", told(right)[1])
        self.refused("README.md", TREE["README.md"] + "<!-- made by tools/readme_table -->\n", "readme_table")

    def test_faults_of_cuda_kernels_fit_their_kernels(self):
        with tempfile.TemporaryDirectory() as folder:
            for part in ("src/ops/cuda", "tests/mutants/cuda"):
                shutil.copytree(os.path.join(ROOT, part), os.path.join(folder, part))
            plant = lambda: subprocess.run([sys.executable, "tests/mutants/cuda/plant.py", "check"], cwd=folder,
                                           capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
            self.assertEqual(plant().stderr, "")
            with open(os.path.join(folder, "src/ops/cuda/embed_reference.cu"), "r+") as f:
                text = f.read().replace("v.w & 0xFFFF0000u", "0xFFFF0000u & v.w")
                f.seek(0)
                f.write(text)
            r = plant()
            self.assertEqual(r.returncode, 1, r.stderr)
            self.assertIn("embed_second_of_a_pair", r.stderr)
        # A tree with CUDA kernels is asked for the faults of theirs.
        self.refused("src/ops/cuda/join_kernels.cu", "// nothing\n", "tests/mutants/cuda/plant.py")

    def test_what_is_right_passes(self):
        self.assertEqual(self.check(), (0, "", "check: 0 errors, 1 ledger rows\n"))

    def test_includes_go_one_way(self):
        self.refused("src/base/error.h", '#pragma once\n#include "engine/loop.h"\n',
                     "src/base/error.h:2: base may not include engine")
        self.refused("src/prove/judge.cpp", '#include "ops/moe.h"\n#include "models/model.h"\n', "prove may not include models")
        # Tests may look further than the code beside them.
        self.assertEqual(self.check({"src/ops/moe_test.cpp": '#include "prove/judge.h"\nTEST(Moe, IsRight) {}\n'})[0], 0)

    def test_links_go_one_way(self):
        self.refused("src/base/CMakeLists.txt", "mettle_folder(base DEPS fmt::fmt mettle_engine)\n",
                     "base may not link mettle_engine")

    def test_an_oracle_knows_no_backend(self):
        for header in "ops/packed.h", "ops/dispatch.h":
            self.refused("src/ops/oracle_moe.cpp", f'#include "{header}"\n', "an oracle may include no backend")

    def test_backends_have_a_line_and_a_file(self):
        self.refused("src/ops/moe.def", "BACKEND(reference)\nBACKEND(fast)\n", "BACKEND(fast) has a line and no file")
        self.refused("src/ops/moe.def", "BACKEND(reference)\nBACKEND(reference)\n", "listed twice")
        self.refused("src/ops/cpu/moe_fast.cpp", "extern const Backend<MoeOp> moe_fast = {};\n",
                     "moe_fast has a file and no line")

    def test_format(self):
        self.refused("src/base/file.cpp", "int  two;\n", "src/base/file.cpp: not formatted")

    def test_the_ledger_names_what_exists(self):
        row = "| right | {} | planted |\n| more | `Moe.IsRight` | {} |\n"
        for test in "`Moe.IsWrong`", "`src/ops/nothing.cpp`":
            self.refused("tests/ledger/ops.md", row.format(test, "seen"), "ops.md:1: no test or file named")
        self.refused("tests/ledger/ops.md", row.format("`src/ops/moe.def::fast`", "seen"), "has no fast")
        self.refused("tests/ledger/ops.md", row.format("Moe.IsRight", "seen"), "names no test in backquotes")
        self.refused("tests/ledger/ops.md", row.format("`Moe.IsRight`", ""), "ops.md:2: says not how")

    def test_links_of_pages(self):
        self.refused("README.md", "[gone](docs/gone.md)\n", "README.md: dead link docs/gone.md")

    def test_no_path_of_a_machine(self):
        self.refused("README.md", "/wo" + "rk/main\n", "names a machine path")


if __name__ == "__main__":
    serving.main()
