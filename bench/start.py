#!/usr/bin/env python3
"""Start of the program: `bench/start.py build/mettle [--json FILE]` (needs the target offline_bench).

Time from start to the first answer token of the embedded model with an empty verdict cache and with a full one, and the
peak of anonymous memory while the 1.4 B shape is loaded (dummy weights), against its packed weights.
"""
import json, os, shutil, statistics, subprocess, sys, tempfile, time

program = os.path.abspath(sys.argv[1])
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def first_token(cache):
    begin = time.monotonic()
    p = subprocess.Popen([program, "run", "What is 17 + 25?", "--no-think", "--temperature", "0", "--max-tokens", "1"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": cache})
    p.stdout.read(1)
    seconds = time.monotonic() - begin
    p.stdout.read()
    assert p.wait() == 0
    return seconds


def load_memory(cache):
    bench = os.path.join(os.path.dirname(program), "bench/offline_bench")
    config = os.path.join(root, "tests/data/configs/qwen3_moe_1p4b")
    out = subprocess.run([bench, config, "--prompt", "16", "--new", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         text=True, check=True, env={**os.environ, "XDG_CACHE_HOME": cache}).stdout
    result = json.loads(out[out.index("{"):])
    return result["load_peak_anonymous_bytes"], result["weight_bytes"]


with tempfile.TemporaryDirectory() as cache:
    cold = []
    for _ in range(5):
        shutil.rmtree(os.path.join(cache, "mettle"), ignore_errors=True)
        cold.append(first_token(cache))
    cached = [first_token(cache) for _ in range(9)]
    peak, weights = load_memory(cache)
results = [
    {"name": "first_token_cold_s", "value": round(statistics.median(cold), 3), "unit": "s", "bound": 5},
    {"name": "first_token_cached_s", "value": round(statistics.median(cached), 3), "unit": "s", "bound": 0.5},
    {"name": "load_1p4b_peak_anonymous_over_weights", "value": round(peak / weights, 4), "unit": "ratio", "bound": 1.1,
     "note": f"{peak} of {weights} bytes"},
]
for r in results:
    print(f"{r['name']:40} {r['value']:8} {r['unit']:6} at most {r['bound']}")
if "--json" in sys.argv:
    with open(sys.argv[sys.argv.index("--json") + 1], "w") as f:
        json.dump({"date": time.strftime("%Y-%m-%d"), "command": "bench/start.py build/mettle", "results": results}, f, indent=1)
