"""`mettle bench` against our own server and against one that misbehaves."""
import html.parser
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/mettle-tiny")
# Whether this machine is busy with something else is not what is tested.
CALM = ("--max-client-lag", "1000000", "--max-client-cpu", "1")


def bench(*arguments, env=None):
    return serving.run_program("bench", *arguments, env={"OPENAI_API_KEY": "", **(env or {})})


def lines(run):
    return [json.loads(line) for line in run.stdout.splitlines()]


class Fake:
    """A server whose every answer is made by answer(handler, body, number of the request)."""

    def __init__(self, answer):
        self.bodies, self.heads, lock = [], [], threading.Lock()
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.plain(200, {"data": [{"id": "fake"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(fake.bodies)
                    fake.bodies.append(body)
                    fake.heads.append((self.path, dict(self.headers)))
                answer(self, body, number)

            def plain(self, status, value):
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def events(self, *events):
                """Events until the connection ends; the last one may be cut anywhere."""
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for event in events:
                    self.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
                    self.wfile.flush()
                self.close_connection = True

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def piece(text, finish=None):
    return {"choices": [{"index": 0, "delta": {"content": text}, "text": text, "finish_reason": finish}]}


def good(handler, body, _number=0):
    n = body["max_tokens"]
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": n}}
    handler.events(*[piece("w ") for _ in range(n - 1)], piece("w", "length"), usage, "[DONE]")


class Usage(unittest.TestCase):
    def refuses(self, *arguments, says, code=2):
        r = bench(*arguments)
        self.assertEqual(r.returncode, code, r)
        self.assertEqual(r.stdout, "")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, r.stderr)

    def test_help_has_examples(self):
        for what, flags in (("serve", ("--request-rate", "--goodput", "--num-prompts", "--random-input-len")),
                            ("offline", ("--pp", "--tg", "--batch", "--json"))):
            r = bench(what, "--help")
            self.assertEqual(r.returncode, 0)
            self.assertIn("Examples:", r.stdout)
            for flag in flags:
                self.assertIn(flag, r.stdout)

    def test_help_names_defaults(self):
        stated = " ".join(bench("serve", "--help").stdout.split())
        self.assertIn("one column for each: 1,8,64; default: 1,8 without a rate", stated)
        self.assertIn("default: four for each in flight, at least 16; 100 at a rate", stated)

    def test_usage_errors_name_the_value(self):
        url = "http://127.0.0.1:9"
        self.refuses(says="serve")
        self.refuses("speed", says="speed")
        self.refuses("serve", says="URL")
        self.refuses("serve", "ftp://x", says="ftp://x")
        self.refuses("serve", url, "--request-rate", "fast", says="fast")
        self.refuses("serve", url, "--request-rate", "0", says="--request-rate")
        self.refuses("serve", url, "--request-rate", "nan", says="nan")
        self.refuses("serve", url, "--request-rate", "2", "--concurrency", "3", says="--concurrency")
        self.refuses("serve", url, "--max-concurrency", "2", "--concurrency", "3", says="--max-concurrency")
        self.refuses("serve", url, "--burstiness", "2", says="--burstiness")
        self.refuses("serve", url, "--concurrency", "1,x", says="x")
        self.refuses("serve", url, "--concurrency", "0", says="0")
        self.refuses("serve", url, "--concurrency", "5000", says="1024")
        for flag in ("--burstiness", "--temperature", "--max-client-cpu", "--max-client-lag", "--timeout"):
            self.refuses("serve", url, "--request-rate", "2", flag, "nan", says=f"{flag}: must be a number, got nan")
        self.refuses("serve", "--goodput", "ttft:5", "ftp://after-the-goals", says="ftp://after-the-goals")
        self.refuses("serve", url, "--goodput", "speed:5", says="speed:5")
        self.refuses("serve", url, "--goodput", "ttft:-5", says="-5")
        self.refuses("serve", url, "--dataset", "poems", says=["poems", "shared-prefix"])
        self.refuses("serve", url, "--dataset", "file", says="--dataset-path")
        self.refuses("serve", url, "--dataset-path", "x", says="--dataset-path")
        self.refuses("serve", url, "--json", "/no/such/folder/x", says="/no/such/folder/x")
        self.refuses("serve", url, "--html", MODEL, says="folder")
        self.refuses("serve", url, "--api-key", "", says="--api-key")
        self.refuses("serve", url, "--num-promts", "5", says="--num-prompts")
        self.refuses("offline", "--pp", "0", "--tg", "0", says="--pp")
        self.refuses("offline", "--batch", "0", says="--batch")

    def test_nobody_listens(self):
        with Fake(good) as fake:
            url = fake.url
        self.refuses("serve", url, code=1, says=["127.0.0.1", "onnect"])

    def test_a_missing_tokenizer(self):
        self.refuses("serve", "http://127.0.0.1:9", "--tokenizer", "/no/such", code=1, says="/no/such")


class OwnServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serving.Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def counted(self, *flags):
        """Lines of a run, checked against what the server itself counted."""
        def total(metrics, name):
            return sum(v for k, v in metrics.items() if k.startswith(name))
        before = self.server.wait_idle()
        r = bench("serve", self.server.url, "--json", "-", "--warmup", "0", *CALM, *flags)
        self.assertEqual(r.returncode, 0, r)
        after = self.server.wait_idle()
        levels = lines(r)
        for name, key in (("mettle_prompt_tokens_total", "total_input_tokens"),
                          ("mettle_generation_tokens_total", "total_output_tokens")):
            self.assertEqual(sum(level[key] for level in levels), total(after, name) - total(before, name), name)
        return levels

    def test_levels_and_requests_that_nobody_named(self):
        short = ("--random-input-len", "4", "--random-output-len", "2")
        levels = self.counted(*short)
        self.assertEqual([(level["max_concurrency"], level["num_prompts"]) for level in levels], [(1, 16), (8, 32)])
        levels = self.counted("--request-rate", "1000", *short)
        self.assertEqual([level["num_prompts"] for level in levels], [100])

    def test_tokens_are_those_that_the_server_counts_and_the_tokenizer_agrees(self):
        for backend in ("completions", "chat"):
            levels = self.counted("--backend", backend, "--tokenizer", MODEL, "--concurrency", "1,4", "--num-prompts", "6",
                                  "--random-input-len", "30", "--random-output-len", "9")
            self.assertEqual([level["max_concurrency"] for level in levels], [1, 4])
            for level in levels:
                self.assertEqual((level["completed"], level["failed"]), (6, 0))
                self.assertEqual(level["total_output_tokens"], 54)
                self.assertEqual(level["token_check"]["input_compared"], 6)
                self.assertEqual(level["token_check"]["input_differ"], 0)
                if backend == "completions":
                    self.assertEqual(level["total_input_tokens"], 180)
                self.assertGreater(level["mean_ttft_ms"], 0)
                self.assertGreater(level["mean_tpot_ms"], 0)
                self.assertGreater(level["mean_e2el_ms"], level["mean_ttft_ms"])
                self.assertEqual(level["mean_e2el_ms"], level["mean_e2e_latency_ms"])
                self.assertLessEqual(level["concurrency"], level["max_concurrency"] + 1e-9)
                self.assertLessEqual(level["max_concurrent_requests"], level["max_concurrency"])

    def test_conversations_grow(self):
        level, = self.counted("--dataset", "multi-turn", "--turns", "3", "--num-prompts", "6", "--concurrency", "2",
                              "--random-input-len", "8", "--random-output-len", "5", "--save-detailed")
        self.assertEqual(level["completed"], 6)
        first, second, third = level["input_lens"][:3]
        self.assertLess(first, second)
        self.assertLess(second, third)

    def test_a_prompt_over_the_context_is_an_error_that_is_listed(self):
        r = bench("serve", self.server.url, "--tokenizer", MODEL, "--random-input-len", "100000", "--num-prompts", "2",
                  "--concurrency", "1", "--warmup", "0", *CALM)
        self.assertEqual(r.returncode, 1, r)
        self.assertRegex(r.stdout, r"http_400 +2 +HTTP 400: .*messages")


class Reports(unittest.TestCase):
    def test_a_table_of_one_stream_and_many(self):
        with Fake(good) as fake:
            r = bench("serve", fake.url, "--concurrency", "1,8", "--num-prompts", "8", "--random-output-len", "5", "--goodput",
                      "ttft:60000", "e2el:60000", *CALM)
        self.assertEqual(r.returncode, 0, r)
        for name in ("Successful requests:", "Failed requests:", "Benchmark duration (s):", "Total input tokens:",
                     "Total generated tokens:", "Request throughput (req/s):", "Request goodput (req/s):",
                     "Output token throughput (tok/s):", "Total token throughput (tok/s):", "Mean TTFT (ms):", "Median TTFT (ms):",
                     "P99 TTFT (ms):", "Mean TPOT (ms):", "P99 TPOT (ms):", "Mean ITL (ms):", "P99 ITL (ms):",
                     "Mean E2E Latency (ms):"):
            self.assertRegex(r.stdout, rf"(?m)^{re.escape(name)} +[\d.]+ +[\d.]+$")
        self.assertRegex(r.stdout, r"(?m)^Successful requests: +8 +8$")
        self.assertRegex(r.stdout, r"(?m)^Total generated tokens: +40 +40$")
        self.assertIn("█", r.stdout)
        goodput, = re.findall(r"(?m)^Request goodput \(req/s\): +([\d.]+)", r.stdout)
        throughput, = re.findall(r"(?m)^Request throughput \(req/s\): +([\d.]+)", r.stdout)
        self.assertEqual(goodput, throughput)

    def test_files_are_whole_and_stand_alone(self):
        with Fake(good) as fake, tempfile.TemporaryDirectory() as folder:
            as_json, page = os.path.join(folder, "r.jsonl"), os.path.join(folder, "r.html")
            r = bench("serve", fake.url, "--concurrency", "2", "--num-prompts", "4", "--random-output-len", "3", "--repeats", "2",
                      "--model", "<b>&model", "--json", as_json, "--html", page, "--save-detailed", *CALM)
            self.assertEqual(r.returncode, 0, r)
            self.assertIn("±", r.stdout)
            with open(as_json) as f:
                result = json.load(f)
            with open(page) as f:
                text = f.read()
            self.assertEqual(sorted(os.listdir(folder)), ["r.html", "r.jsonl"])
        self.assertEqual(result["completed"], 8)
        self.assertEqual(result["repeats"], 2)
        self.assertEqual(result["model_id"], "<b>&model")
        self.assertEqual(len(result["confidence95"]["output_throughput"]["values"]), 2)
        self.assertEqual(result["output_lens"], [3] * 8)
        self.assertEqual([len(i) for i in result["itls"]], [2] * 8)
        self.assertEqual(result["generated_texts"], ["w w w"] * 8)
        for name in ("ttft", "tpot", "itl", "e2el", "e2e_latency"):
            for q in ("mean", "median", "std", "p90", "p95", "p99"):
                self.assertIn(f"{q}_{name}_ms", result)
        for key in ("total_token_throughput", "total_throughput", "request_goodput", "duration", "max_output_tokens_per_s"):
            self.assertIn(key, result)

        class Tags(html.parser.HTMLParser):
            def __init__(self):
                super().__init__()
                self.open, self.seen, self.links = [], set(), []

            def handle_starttag(self, tag, attrs):
                self.seen.add(tag)
                self.links += [v for k, v in attrs if k in ("src", "href")]
                if tag not in ("meta", "br"):
                    self.open.append(tag)

            def handle_startendtag(self, tag, attrs):
                self.seen.add(tag)

            def handle_endtag(self, tag):
                assert self.open.pop() == tag, tag
        tags = Tags()
        tags.feed(text)
        self.assertEqual((tags.open, tags.links), ([], []))
        self.assertIn("svg", tags.seen)
        self.assertIn("prefers-color-scheme: dark", text)
        self.assertIn("&lt;b&gt;&amp;model under load", text)

    def test_datasets(self):
        def sent(*flags):
            with Fake(good) as fake:
                r = bench("serve", fake.url, "--warmup", "0", "--concurrency", "1", "--random-input-len", "20",
                          "--random-output-len", "2", "--backend", "completions", *flags, *CALM)
                self.assertEqual(r.returncode, 0, r)
                return [body["prompt"] for body in fake.bodies]
        first = sent("--num-prompts", "5", "--seed", "3")
        self.assertEqual([len(p.split()) for p in first], [20] * 5)
        self.assertEqual(len(set(first)), 5)
        self.assertEqual(sent("--num-prompts", "5", "--seed", "3"), first)
        self.assertNotEqual(sent("--num-prompts", "5", "--seed", "4"), first)
        shared = sent("--num-prompts", "6", "--dataset", "generated-shared-prefix", "--prefix-len", "30", "--num-prefixes", "2")
        beginnings = [" ".join(p.split()[:30]) for p in shared]
        self.assertEqual(len(set(beginnings)), 2)
        self.assertEqual(beginnings[0::2], [beginnings[0]] * 3)
        self.assertEqual(len(set(shared)), 6)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump([{"id": "a", "conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "x"}]},
                       {"id": "b", "conversations": []}, {"prompt": "two"}], f)
            f.flush()
            self.assertEqual(sent("--num-prompts", "3", "--dataset", "sharegpt", "--dataset-path", f.name), ["one", "two", "one"])

    def test_a_rate_whatever_the_server_does(self):
        with Fake(good) as fake:
            r = bench("serve", fake.url, "--request-rate", "200", "--burstiness", "0.5", "--num-prompts", "20", "--json", "-",
                      "--random-output-len", "2", *CALM)
        self.assertEqual(r.returncode, 0, r)
        level, = lines(r)
        self.assertEqual((level["completed"], level["request_rate"], level["burstiness"]), (20, 200, 0.5))
        self.assertEqual(level["client"]["held_back"], 0)

    def test_the_key_of_the_environment(self):
        with Fake(good) as fake:
            bench("serve", fake.url, "--concurrency", "1", "--num-prompts", "1", *CALM, env={"OPENAI_API_KEY": "sk-env"})
            self.assertEqual(fake.heads[0][1].get("Authorization"), "Bearer sk-env")


class Misbehaviour(unittest.TestCase):
    def run_against(self, answer, *flags):
        with Fake(answer) as fake:
            return bench("serve", fake.url, "--concurrency", "2", "--num-prompts", "4", "--random-output-len", "3",
                         *(() if "--warmup" in flags else ("--warmup", "0")), *CALM, *flags)

    def test_each_kind_of_error_is_counted_and_quoted(self):
        def answer(handler, body, number):
            if number == 0:
                handler.plain(500, {"error": {"message": "out of blocks"}})
            elif number == 1:
                handler.events(piece("a"))
            elif number == 2:
                handler.events(piece("a"), "{garbage")
            else:
                good(handler, body)
        r = self.run_against(answer)
        self.assertEqual(r.returncode, 0, r)
        self.assertRegex(r.stdout, r"(?m)^Successful requests: +1$")
        self.assertRegex(r.stdout, r"(?m)^Failed requests: +3$")
        self.assertRegex(r.stdout, r"http_500 +1 +HTTP 500: out of blocks")
        self.assertRegex(r.stdout, r"cut +1 +stream: must end with \[DONE\]")
        self.assertRegex(r.stdout, r"bad_json +1 +.*\{garbage")

    def test_no_request_went_well(self):
        r = self.run_against(lambda handler, body, number: handler.plain(503, b"no"))
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"http_503 +4 +HTTP 503: no")
        r = self.run_against(lambda handler, body, number: handler.plain(503, b"no"), "--warmup", "1")
        self.assertEqual(r.returncode, 1)
        self.assertEqual(r.stdout, "")
        self.assertIn("warm-up", r.stderr)

    def test_no_usage(self):
        r = self.run_against(lambda handler, body, number: handler.events(piece("a"), piece("b", "stop"), "[DONE]"))
        self.assertEqual(r.returncode, 0, r)
        self.assertIn("4 of 4 answers came without usage", r.stdout)
        self.assertRegex(r.stdout, r"(?m)^Total generated tokens: +8$")

    def test_usage_of_more_tokens_than_were_asked_for(self):
        def answer(handler, body, number):
            usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": body["max_tokens"] + 1000}}
            handler.events(piece("a", "length"), usage, "[DONE]")
        r = self.run_against(answer)
        self.assertEqual(r.returncode, 0, r)
        self.assertIn("4 of 4 answers have more tokens by the server's usage than were asked for", r.stdout)
        self.assertNotIn("than were asked for", self.run_against(good).stdout)

    def test_what_failed_is_told_when_there_are_no_figures(self):
        def answer(handler, body, number):
            handler.plain(500, {"error": {"message": "out of blocks"}})
        with Fake(answer) as fake:
            r = bench("serve", fake.url, "--concurrency", "2", "--num-prompts", "4", "--random-output-len", "3", "--warmup", "0",
                      "--max-client-cpu", "0", "--max-client-lag", "0")
        self.assertEqual((r.returncode, r.stdout), (1, ""), r)
        self.assertRegex(r.stderr, r"this client was the bottleneck.* 4 of 4 requests failed, the first: HTTP 500: out of blocks")

    def test_a_server_that_is_too_slow(self):
        release = threading.Event()
        try:
            r = self.run_against(lambda handler, body, number: release.wait(120), "--timeout", "0.5")
        finally:
            release.set()
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"timeout +4 ")

    def test_more_tokens_than_the_tokenizer_counts(self):
        r = self.run_against(good, "--tokenizer", MODEL)
        self.assertEqual(r.returncode, 0, r)
        self.assertRegex(r.stdout, r"counts 4 of 4 prompts differently than the server")

    def test_a_client_that_was_held_up_reports_nothing(self):
        """The fault: the client is stopped for a second while a request runs."""
        def held_up(limit, folder):
            def answer(handler, body, number):
                if number == 1:
                    os.kill(client.pid, signal.SIGSTOP)
                    stopped = threading.Event()
                    for _ in range(1200):
                        with open(f"/proc/{client.pid}/stat") as f:
                            if f.read().rsplit(")", 1)[1].split()[0] == "T":
                                break
                        stopped.wait(0.05)
                    stopped.wait(1)
                    os.kill(client.pid, signal.SIGCONT)
                good(handler, body)
            with Fake(answer) as fake:
                client = subprocess.Popen(
                    [serving.PROGRAM, "bench", "serve", fake.url, "--concurrency", "1", "--num-prompts", "2", "--warmup", "0",
                     "--random-output-len", "3", "--json", os.path.join(folder, "r.json"), "--max-client-cpu", "1",
                     "--max-client-lag", limit], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                out, err = client.communicate(timeout=300)
            return client.returncode, out, err
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = held_up("20", folder)
            self.assertEqual((code, out), (1, ""), err)
            self.assertIn("this client was the bottleneck", err)
            self.assertIn("ms late at one moment of a hundred", err)
            self.assertEqual(os.listdir(folder), [])
            code, out, err = held_up("1000000", folder)
            self.assertEqual(code, 0, err)
            self.assertEqual(os.listdir(folder), ["r.json"])

    def test_what_is_due_beyond_the_most_in_flight_is_held_back(self):
        gate = threading.Barrier(2, timeout=60)

        def answer(handler, body, number):
            gate.wait()  # none is answered before the second is there: one in flight is never enough
            good(handler, body)
        with Fake(answer) as fake:
            r = bench("serve", fake.url, "--request-rate", "100000", "--max-concurrency", "2", "--num-prompts", "8", "--warmup", "0",
                      "--random-output-len", "2", *CALM)
        self.assertEqual(r.returncode, 0, r)
        self.assertRegex(r.stdout, r"\d requests were held back: 2 were in flight already")


class Offline(unittest.TestCase):
    def test_table_and_json(self):
        r = bench("offline", "--pp", "16", "--tg", "4", "--batch", "1,2", "-r", "2", "--max-total-tokens", "512")
        self.assertEqual(r.returncode, 0, r)
        table = r.stdout.splitlines()
        self.assertEqual([c.strip() for c in table[0].strip("|").split("|")], ["model", "size", "device", "threads", "test", "t/s"])
        self.assertRegex(table[1], r"^\|[-:|]+\|$")
        self.assertEqual([row.split("|")[5].strip() for row in table[2:]], ["pp16", "tg4", "pp16 x 2", "tg4 x 2"])
        for row in table[2:]:
            self.assertRegex(row, r"\d+\.\d\d ± \d+\.\d\d \|$")
        r = bench("offline", "--pp", "16", "--tg", "0", "-r", "3", "--max-total-tokens", "512", "--json")
        self.assertEqual(r.returncode, 0, r)
        test, = json.loads(r.stdout)
        self.assertEqual((test["n_prompt"], test["n_gen"], test["n_seqs"], len(test["samples_ts"])), (16, 0, 1, 3))
        self.assertAlmostEqual(test["avg_ts"], sum(test["samples_ts"]) / 3, places=6)

    def test_offline_sequences_that_cannot_run_together_are_no_batch(self):
        r = bench("offline", "--pp", "100", "--tg", "0", "-r", "1", "--batch", "64", "--context-length", "512",
                  "--max-total-tokens", "512")
        self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
        self.assertRegex(r.stderr, r"--batch: at most \d+ sequences of 101 tokens fit .*, got 64")

    def test_a_prompt_over_the_context(self):
        r = bench("offline", "--pp", "100000", "--context-length", "256", "--max-total-tokens", "512")
        self.assertEqual(r.returncode, 2, r)
        self.assertIn("pp100000: must fit into the context of 256 tokens", r.stderr)


if __name__ == "__main__":
    serving.main()
