#!/usr/bin/env python3
"""A server that behaves like SGLang or vLLM on a bad night: OpenAI-like HTTP, a log in their style, and one fault.

    fake_server.py --port 30000 --engine sglang --behaviour marks

Standard library only. `--list` prints the behaviours. Without one it works: it adds two numbers, knows capitals, streams,
counts tokens, sends log-probabilities.
"""
import argparse
import datetime
import http.server
import json
import os
import re
import signal
import socket
import sys
import threading
import time

BEHAVIOURS = {
    "works": "answers right",
    "dies-in-load": "a kernel that exists only for SM100 ends it while graphs are captured",
    "oom": "the kernel's out-of-memory killer ends it while weights are shuffled",
    "dies-at-first-request": "illegal memory access at the first request",
    "hangs": "silent for ever after the first collective",
    "never-ready": "keeps writing and never becomes ready",
    "marks": "answers !!!!",
    "repeats": "answers the same words again and again",
    "wrong": "answers something else",
    "empty": "answers nothing",
    "nan": "log-probabilities are NaN from the second token on",
    "nan-error": "status 500: a NaN log-probability is no JSON",
    "fails-under-load": "status 500 whenever two requests run at once",
    "ignores-sigterm": "works, and does not end at SIGTERM",
    "leaves-child": "works, and ends leaving a child that holds the port",
    "detaches": "works, and leaves a process in a session of its own, twice forked, with an empty environment, and "
                "a file in /dev/shm",
    "floods": "works, and writes --flood-mib of log first",
    "unhealthy": "works, but its health turns to 503 with the first answer",
    "exits": "ends by itself with exit code 3 and a plain word",
}
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}
SHARED = "/dev/shm/fake_server_{pid}"


class Log:
    """Lines as the engine of that name writes them."""

    def __init__(self, engine):
        self.engine = engine
        self.lock = threading.Lock()

    def line(self, text, rank=None, level="INFO", where="model_runner.py:412"):
        now = datetime.datetime.now()
        if self.engine == "vllm":
            name = "APIServer pid=%d" % os.getpid() if rank is None else f"Worker_TP{rank} pid={os.getpid() + 1 + rank}"
            text = f"({name}) {level} {now:%m-%d %H:%M:%S} [{where}] {text}"
        else:
            text = f"[{now:%Y-%m-%d %H:%M:%S}{'' if rank is None else f' TP{rank}'}] {text}"
        self.raw(text)

    def raw(self, text):
        with self.lock:
            try:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
            except (BrokenPipeError, ValueError):
                os._exit(1)


class Server:
    def __init__(self, arguments):
        self.a = arguments
        self.log = Log(arguments.engine)
        self.requests = 0
        self.running = 0
        self.lock = threading.Lock()
        self.ready = False
        self.sick = False

    # What stands in the log until the server is ready, and what ends it before.
    def load(self):
        a, log = self.a, self.log
        step = a.load_seconds / 6
        if a.engine == "vllm":
            log.line("vLLM API server version 0.17.1", where="api_server.py:1839")
            log.line("Resolved architecture: Qwen3_5MoeForConditionalGeneration", where="model.py:547")
            log.line("device 0: NVIDIA RTX PRO 6000 Blackwell Server Edition, memory 94.97 GiB", 0, where="gpu_worker.py:180")
        else:
            log.line(f"server_args=ServerArgs(model_path='{a.model}', host='127.0.0.1', port={a.port}, "
                     f"quantization='modelopt_fp4', tp_size=2, moe_runner_backend='{a.moe_runner_backend}', "
                     f"attention_backend='{a.attention_backend}')")
            log.line("Init torch distributed begin.", 0)
        time.sleep(step)
        if a.behaviour == "hangs":
            for rank in (0, 1):
                log.raw(f"node3:{7200 + rank}:{7300 + rank} [{rank}] NCCL INFO Bootstrap: Using eth0:10.0.3.4<0>")
            for rank in (0, 1):
                log.raw(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} node3:{7200 + rank}:{7300 + rank} [{rank}] NCCL INFO "
                        f"ncclCommInitRankConfig comm 0x5{rank} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId "
                        f"{rank + 1}000 commId 0x9f - Init COMPLETE")
            self.sleep_for_ever()
        if a.engine == "vllm":
            log.line(f"Starting to load model {a.model}...", 0, where="gpu_model_runner.py:2602")
        else:
            log.line("Init torch distributed ends. mem usage=1.22 GB", 0)
            log.line("Load weight begin. avail mem=93.39 GB", 0)
            log.line("Detected device NVIDIA RTX PRO 6000 Blackwell Server Edition, nvfp4 checkpoint, quant_algo NVFP4", 0)
        for shard in range(1, 5):
            log.raw(f"Loading safetensors checkpoint shards: {25 * shard:3d}% Completed | {shard}/4 [00:0{shard}<00:00,  1.00s/it]")
            time.sleep(step / 2)
        if a.behaviour == "exits":
            log.raw("bye")
            os._exit(3)
        if a.behaviour == "oom":
            for rank in (0, 1):
                log.line(f"Shuffling expert weights of 92 layers for {a.moe_runner_backend}", rank)
            log.line("Shuffling: layer 31 of 92, host memory 412.8 of 503.5 GiB", 0)
            log.raw(f"[12345.678901] Out of memory: Killed process {os.getpid()} (python3) total-vm:528482304kB, "
                    "anon-rss:432857088kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:848132kB oom_score_adj:0")
            os.kill(os.getpid(), signal.SIGKILL)
        if a.engine == "vllm":
            log.line("Loading weights took 1.02 seconds", 0, where="default_loader.py:314")
            log.line("Available KV cache memory: 61.20 GiB", 0, where="gpu_worker.py:305")
        else:
            log.line("Load weight end. elapsed=1.0 s, type=Qwen3_5MoeForConditionalGeneration, avail mem=61.50 GB", 0)
            log.line("KV Cache is allocated. #tokens: 420934, K size: 11.02 GB, V size: 11.02 GB", 0)
            log.line("Capture cuda graph begin. This can take up to several minutes. avail mem=8.27 GB", 0)
        time.sleep(step)
        if a.behaviour == "dies-in-load":
            for rank in (0, 1):
                log.line("Scheduler hit an exception: Traceback (most recent call last):", rank)
                log.raw('  File "/opt/sglang/srt/managers/scheduler.py", line 2720, in run_scheduler_process\n'
                        "    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank)\n"
                        '  File "/opt/sglang/srt/model_executor/cuda_graph_runner.py", line 499, in capture\n'
                        "    _capture_one_stream()\n"
                        '  File "/opt/sglang/srt/layers/attention/trtllm_mha_backend.py", line 512, in forward_decode\n'
                        "    raw_out = flashinfer.decode.trtllm_batch_decode_with_kv_cache(\n"
                        "RuntimeError: Error in function 'TllmGenFmhaRunner' at /workspace/include/flashinfer/trtllm/fmha/"
                        "fmhaRunner.cuh:30: Unsupported architecture\n")
            log.line("Received sigquit from a child process. It usually means the child failed.")
            log.raw("Killed")
            os._exit(1)
        if a.behaviour == "never-ready":
            step_number = 0
            while True:
                step_number += 1
                log.line(f"Capturing batches (bs={step_number})", 0)
                time.sleep(0.1)
        if a.behaviour == "floods":
            text = "".join(f"[{n:08d}] token {n} of a debug dump that somebody left on\n" for n in range(2000))
            for _ in range(max(1, (a.flood_mib << 20) // len(text))):
                log.raw(text.rstrip("\n"))
        if a.behaviour == "detaches":
            self.detach()

    @staticmethod
    def sleep_for_ever():
        while True:
            time.sleep(3600)

    def detach(self):
        """What a helper that wants to outlive its server does: fork, setsid, fork, nothing inherited."""
        path = SHARED.format(pid=os.getpid())
        shared = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(shared, 4096)
        os.set_inheritable(shared, True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, [sys.executable, "-c", "import time\nwhile True: time.sleep(3600)"], {})
            os._exit(0)
        os.wait()

    def begin(self):
        with self.lock:
            self.requests += 1
            self.running += 1
            return self.requests, self.running

    def end(self):
        with self.lock:
            self.running -= 1

    def answer(self, prompt):
        """Tokens of the right answer, or of what the behaviour makes of it."""
        if self.a.behaviour == "marks":
            return ["!"] * 48
        if self.a.behaviour == "repeats":
            return ["the", " river", " and"] * 16
        if self.a.behaviour == "wrong":
            return ["It", " depends", "."]
        if self.a.behaviour == "empty":
            return []
        sum_of = re.search(r"(\d+) plus (\d+)", prompt)
        if sum_of:
            return list(str(int(sum_of.group(1)) + int(sum_of.group(2))))
        for country, capital in CAPITALS.items():
            if country in prompt:
                return [capital]
        words = (prompt.split() or ["well"])[::-1]
        return [(" " if i else "") + words[i % len(words)] for i in range(len(words))]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fake"
    owner = None  # Server

    def log_message(self, form, *values):
        self.owner.log.raw(f'INFO:     127.0.0.1:{self.client_address[1]} - "{self.requestline}" {values[1] if len(values) > 1 else ""} OK')

    def send(self, status, body, kind="application/json"):
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        owner = self.owner
        if self.path in ("/health", "/health_generate"):
            self.send(200 if owner.ready and not owner.sick else 503, "{}")
        elif self.path == "/v1/models":
            self.send(200, json.dumps({"object": "list", "data": [{"id": owner.a.model, "object": "model", "owned_by": "fake"}]}))
        else:
            self.send(404, json.dumps({"error": {"message": f"no such path {self.path}"}}))

    def do_POST(self):
        owner = self.owner
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            self.send(404, json.dumps({"error": {"message": f"no such path {self.path}"}}))
            return
        number, running = owner.begin()
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            prompt = body["messages"][-1]["content"] if chat else body["prompt"]
            self.generate(body, prompt, chat, number, running)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            self.send(400, json.dumps({"error": {"message": f"bad request: {error}"}}))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            owner.end()

    def generate(self, body, prompt, chat, number, running):
        owner, behaviour = self.owner, self.owner.a.behaviour
        if behaviour == "dies-at-first-request":
            owner.log.line("Scheduler hit an exception: Traceback (most recent call last):", 0)
            owner.log.raw('  File "/opt/sglang/srt/managers/scheduler.py", line 2801, in event_loop_overlap\n'
                          "    result = self.run_batch(batch)\n"
                          "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n")
            os._exit(1)
        if behaviour == "unhealthy":
            owner.sick = True
        if behaviour == "fails-under-load" and running > 1:
            self.send(500, json.dumps({"error": {"message": "Internal Server Error"}}))
            return
        tokens = owner.answer(prompt)
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 64
        if body.get("ignore_eos") and tokens:
            tokens = [tokens[i % len(tokens)] for i in range(wanted)]
        finish = "length" if len(tokens) > wanted else "stop"
        tokens = tokens[:wanted]
        usage = {"prompt_tokens": len(str(prompt).split()), "completion_tokens": len(tokens)}
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        logprobs = [-0.25] * len(tokens)
        if behaviour in ("nan", "nan-error"):
            logprobs = [-0.25] + [float("nan")] * (len(tokens) - 1)
        if behaviour == "nan-error" and body.get("logprobs"):
            owner.log.line("ValueError: Out of range float values are not JSON compliant: nan", level="ERROR")
            self.send(500, json.dumps({"error": {"message": "Out of range float values are not JSON compliant: nan"}}))
            return
        if body.get("stream"):
            self.stream(body, tokens, usage, finish, chat, number)
            return
        time.sleep(owner.a.token_ms * len(tokens) / 1000)
        text = "".join(tokens)
        if chat:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [{"token": t, "logprob": p} for t, p in zip(tokens, logprobs)]}
        else:
            choice = {"index": 0, "text": text, "finish_reason": finish}
            if body.get("logprobs"):
                choice["logprobs"] = {"tokens": tokens, "token_logprobs": logprobs}
        self.send(200, json.dumps({"id": f"fake-{number}", "object": "chat.completion" if chat else "text_completion",
                                   "model": owner.a.model, "choices": [choice], "usage": usage}))

    def stream(self, body, tokens, usage, finish, chat, number):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def event(data):
            text = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()

        def piece(text, reason):
            inner = {"delta": {"content": text}} if chat else {"text": text}
            return json.dumps({"id": f"fake-{number}", "object": "chat.completion.chunk" if chat else "text_completion",
                               "model": self.owner.a.model, "choices": [{"index": 0, **inner, "finish_reason": reason}]})

        for i, token in enumerate(tokens):
            time.sleep(self.owner.a.token_ms / 1000)
            event(piece(token, finish if i == len(tokens) - 1 else None))
        if not tokens:
            event(piece("", finish))
        if (body.get("stream_options") or {}).get("include_usage"):
            event(json.dumps({"id": f"fake-{number}", "object": "chat.completion.chunk", "model": self.owner.a.model, "choices": [],
                              "usage": usage}))
        event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256


def leave_child(listener):
    """A child that keeps the listening socket; it ignores SIGTERM, as a worker that waits for a GPU does."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        socket.socket.set_inheritable(listener.socket, True)
        Server.sleep_for_ever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--engine", choices=["sglang", "vllm"], default="sglang")
    parser.add_argument("--behaviour", choices=list(BEHAVIOURS), default="works")
    parser.add_argument("--model", default="fake-moe-nvfp4")
    parser.add_argument("--moe-runner-backend", "--moe-backend", default="auto")
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--load-seconds", type=float, default=0.6)
    parser.add_argument("--token-ms", type=float, default=5)
    parser.add_argument("--flood-mib", type=int, default=1024)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        for name, what in BEHAVIOURS.items():
            print(f"{name:24} {what}")
        return
    server = Server(arguments)
    Handler.owner = server
    ended = threading.Event()
    if arguments.behaviour == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: ended.set() if server.ready else os._exit(143))
    server.load()
    listener = Listener(("127.0.0.1", arguments.port), Handler)
    if arguments.behaviour == "leaves-child":
        leave_child(listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    server.ready = True
    if arguments.engine == "vllm":
        server.log.line(f"Starting vLLM API server on http://127.0.0.1:{arguments.port}", where="api_server.py:1912")
        server.log.raw("INFO:     Application startup complete.")
    else:
        server.log.line(f"Uvicorn running on http://127.0.0.1:{arguments.port}")
        server.log.line("The server is fired up and ready to roll!")
    ended.wait()
    server.log.line("Shutting down")
    os._exit(0)


if __name__ == "__main__":
    main()
