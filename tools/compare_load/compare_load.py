#!/usr/bin/env python3
"""mettle bench serve beside aiperf: the same prompts to the same running servers, in turns, and how far they differ.

  compare_load.py METTLE AIPERF TOKENIZER_FOLDER --server NAME URL LOADS [--server ...]

LOADS is a list like 1,4,2.5/s: so many requests at once, or so many a second at even distances whatever the server does.
Of two loads the second is the fairer: with several at once it is chance which requests share a step, and a server that
gets them a millisecond apart may answer half of them a whole prompt earlier.

The servers must keep no prompts in a cache (llama-server: --no-cache-prompt --cache-ram 0), or whoever comes second
measures something else. TOKENIZER_FOLDER (models/mettle-tiny will do) is loaded by aiperf, which will not start without
one; tokens are counted by the servers' usage. Both tools run on the CPU of --core with one client process, so give the servers other ones. Prints
Markdown: for each server, load and figure the medians over the rounds and their difference. A server shares caches and
memory with its client, and one client disturbs it more than another: "server's own" is how far the server's own clock
(/metrics of mettle, and of llama-server --metrics) differs between the two. Exit code 1 when token counts differ, or the
mean of a latency by more than --limit beyond what the server's own does. Needs `pip install aiperf`; made with aiperf 0.13.0.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

WORDS = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they "
         "which one you were all her she there").split()
LATENCIES = ["mean TTFT ms", "mean TPOT ms", "mean E2E ms"]
COUNTS = ["requests", "input tokens", "output tokens"]
OTHERS = ["median TTFT ms", "median TPOT ms", "median E2E ms", "p99 TTFT ms", "p99 E2E ms", "output tokens/s"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mettle")
    parser.add_argument("aiperf")
    parser.add_argument("tokenizer")
    parser.add_argument("--server", nargs=3, action="append", required=True, metavar=("NAME", "URL", "LOADS"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--words", type=int, default=96, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--endpoint", choices=["completions", "chat"], default="completions")
    parser.add_argument("--core", default="1", help="CPU of the clients")
    parser.add_argument("--limit", type=float, default=3, help="per cent")
    parser.add_argument("--json", help="every run's figures")
    return parser.parse_args()


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{command[3]}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


# Not by the tools: the server's own clock would count their first requests, which one of them sends together.
def warm_up(url, model):
    body = {"model": model, "prompt": "the of and to", "max_tokens": 8}
    run(["curl", "-sf", "-m", "60", f"{url}/v1/completions", "-H", "Content-Type: application/json", "-d",
         json.dumps(body)])


# Seconds to the first token and seconds for the tokens after it, with what they are sums of, by the server's own clock.
OWN = {"TTFT": [("mettle_time_to_first_token_seconds_sum", "mettle_time_to_first_token_seconds_count"),
                ("llamacpp:prompt_seconds_total", "llamacpp:prompt_tokens_total")],
       "TPOT": [("mettle_inter_token_latency_seconds_sum", "mettle_inter_token_latency_seconds_count"),
                ("llamacpp:tokens_predicted_seconds_total", "llamacpp:tokens_predicted_total")]}


def counters(url):
    done = subprocess.run(["curl", "-sf", "-m", "20", f"{url}/metrics"], capture_output=True, text=True)
    lines = (line.rsplit(" ", 1) for line in done.stdout.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def own_times(before, after):
    got = {}
    for figure, pairs in OWN.items():
        for sum_, count in pairs:
            if after.get(count, 0) > before.get(count, 0):
                got[figure] = (after[sum_] - before.get(sum_, 0)) / (after[count] - before.get(count, 0))
    return got


def with_mettle(options, folder, url, model, load):
    asked = ["--request-rate", load[:-2], "--burstiness", "1000"] if load.endswith("/s") else ["--concurrency", load]
    output = run(["taskset", "-c", options.core, options.mettle, "bench", "serve", url, "--backend", options.endpoint,
                  "--model", model, "--dataset", "file", "--dataset-path", f"{folder}/mettle.jsonl", "--num-prompts",
                  str(options.requests), *asked, "--warmup", "0", "--json", "-"])
    got = json.loads(output)
    return {"requests": got["completed"], "input tokens": got["total_input_tokens"],
            "output tokens": got["total_output_tokens"], "output tokens/s": got["output_throughput"],
            **{f"{kind} {name} ms": got[f"{kind}_{key}_ms"] for kind in ("mean", "median", "p99")
               for name, key in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2el"))}}


# aiperf takes tokenizers of a hub alone: a cache of one in which the folder stands as compare/load.
def make_hub(folder, tokenizer):
    repo, revision = f"{folder}/hub/models--compare--load", "1" * 40
    os.makedirs(f"{repo}/snapshots")
    os.makedirs(f"{repo}/refs")
    os.symlink(os.path.abspath(tokenizer), f"{repo}/snapshots/{revision}")
    with open(f"{repo}/refs/main", "w") as file:
        file.write(revision)


def with_aiperf(options, folder, url, model, load):
    asked = (["--request-rate", load[:-2], "--arrival-pattern", "gamma", "--arrival-smoothness", "1000"]
             if load.endswith("/s") else ["--concurrency", load])
    with tempfile.TemporaryDirectory(dir=folder) as out:
        extra = {"max_tokens": options.tokens, "ignore_eos": True, "temperature": 0}
        run(["taskset", "-c", options.core, options.aiperf, "profile", "--model", model, "--url", url,
             "--endpoint-type", options.endpoint, "--streaming", "--input-file", f"{folder}/aiperf.jsonl",
             "--custom-dataset-type", "single_turn", "--dataset-sampling-strategy", "sequential", *asked,
             "--request-count", str(options.requests), "--tokenizer",
             "compare/load", "--use-server-token-count", "--use-legacy-max-tokens", "--extra-inputs", json.dumps(extra),
             "--artifact-dir", out, "--ui", "none", "--workers-max", "1", "--no-gpu-telemetry",
             "--no-server-metrics"], env={**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1"})
        with open(f"{out}/profile_export_aiperf.json") as file:
            got = json.load(file)
        with open(f"{out}/profile_export.jsonl") as file:
            records = [json.loads(line) for line in file]

    def total(*names):
        return sum(next((r["metrics"][n]["value"] for n in names if n in r["metrics"]), 0) for r in records)
    keys = {"TTFT": "time_to_first_token", "TPOT": "inter_token_latency", "E2E": "request_latency"}
    return {"requests": len(records), "input tokens": total("usage_prompt_tokens", "input_sequence_length"),
            "output tokens": total("usage_completion_tokens", "output_sequence_length"),
            "output tokens/s": got["output_token_throughput"]["avg"],
            **{f"{kind} {name} ms": got[key][which] for kind, which in (("mean", "avg"), ("median", "p50"), ("p99", "p99"))
               for name, key in keys.items()}}


def difference(ours, theirs):
    return 100 * (ours / theirs - 1) if theirs else float(ours != theirs) * 100


# Per cent. E2E is the two others, weighed by their shares of it.
def own_difference(runs):
    if any(len(r["own"]) < len(OWN) for kept in runs.values() for r in kept):
        return {}
    own = {figure: difference(*(statistics.median(r["own"][figure] for r in runs[tool]) for tool in ("mettle", "aiperf")))
           for figure in OWN}
    first = statistics.median(r["mean TTFT ms"] / r["mean E2E ms"] for r in runs["mettle"])
    return {**own, "E2E": first * own["TTFT"] + (1 - first) * own["TPOT"]}


def main():
    options = arguments()
    draw = random.Random(7)
    texts = [" ".join(draw.choice(WORDS) for _ in range(options.words)) for _ in range(options.requests)]
    everything, good = [], True
    with tempfile.TemporaryDirectory(prefix="compare-load-") as folder:
        make_hub(folder, options.tokenizer)
        with open(f"{folder}/mettle.jsonl", "w") as file:
            file.writelines(json.dumps({"prompt": t, "output_tokens": options.tokens}) + "\n" for t in texts)
        with open(f"{folder}/aiperf.jsonl", "w") as file:
            file.writelines(json.dumps({"text": t}) + "\n" for t in texts)
        print("| server | load | figure | mettle | aiperf | difference | server's own |\n"
              "| --- | --: | --- | --: | --: | --: | --: |")
        for name, url, loads in options.server:
            model = json.loads(run(["curl", "-sf", "-m", "20", f"{url}/v1/models"]))["data"][0]["id"]
            for load in loads.split(","):
                runs = {"mettle": [], "aiperf": []}
                for i in range(options.rounds):
                    for tool in ("mettle", "aiperf") if i % 2 == 0 else ("aiperf", "mettle"):
                        warm_up(url, model)
                        before = counters(url)
                        measure = with_mettle if tool == "mettle" else with_aiperf
                        runs[tool].append(measure(options, folder, url, model, load))
                        runs[tool][-1]["own"] = own_times(before, counters(url))
                everything.append({"server": name, "load": load, "runs": runs})
                own = own_difference(runs)
                for figure in COUNTS + LATENCIES + OTHERS:
                    ours, theirs = (statistics.median(r[figure] for r in runs[tool]) for tool in ("mettle", "aiperf"))
                    far = difference(ours, theirs)
                    limit = 0 if figure in COUNTS else options.limit if figure in LATENCIES else float("inf")
                    ours_alone = own.get(figure.split()[1], 0) if figure in LATENCIES else 0
                    over = abs(far - ours_alone) > limit
                    good = good and not over
                    digits = ".0f" if figure in COUNTS else ".3f"
                    print(f"| {name} | {load} | {figure} | {ours:{digits}} | {theirs:{digits}} | {far:+.2f} % | "
                          f"{f'{ours_alone:+.2f} %' if ours_alone else ''} |{' over' if over else ''}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(everything, file, indent=1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
