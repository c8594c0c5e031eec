"""Variants of labelled logs, with their own expected.json: permuted, interleaved with another rank's noise, cut at
both ends, wrapped by containers and journals, in other words.   log_variants.py LOGS OUT [SEEDS]"""
import gzip
import json
import os
import random
import re
import sys

# What a row of the table says, in words that no row has. The generic rules must find the same class.
REWORDED = {
    "no kernel image is available for execution on the device": "this kernel is not supported on SM120",
    "Unsupported architecture": "unsupported GPU architecture sm_120",
    "is unsupported on SM89": "has no kernel for compute capability 8.9: not supported",
    "No NvFp4 MoE backend supports the deployment configuration": "no suitable NVFP4 MoE backend for this device",
    "an illegal memory access was encountered": "cudaErrorIllegalAddress (700)",
    "an illegal instruction was encountered": "cudaErrorIllegalInstruction (715)",
    "SM 12.x requires CUDA >= 12.9": "this GPU needs CUDA 12.9 or newer: CUDA toolkit 12.9 or newer is required",
    "Instruction 'cvt with .e2m1x2' not supported on .target 'sm_120'": "Feature 'cvt with .e2m1x2' requires .target sm_120a or higher",
    "nvcc fatal   : Unsupported gpu architecture": "nvcc fatal: unsupported gpu architecture",
    "Not enough memory. Please try to increase --mem-fraction-static": "there is not enough memory for the KV pool",
    "Free memory on device (2.31/31.36 GiB) on startup is less than desired": "GPU 0 is in use by another process: 2.31 of 31.36 GiB free, less than desired",
    "Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 33030528), error: No space left on device (28)": "cannot allocate 33030528 bytes in /dev/shm",
    "MTP speculative decoding layer 78 weights missing from checkpoint": "draft layer 78: weights not found in the checkpoint",
    "Failed to advance FSM for request chatcmpl-31 for tokens 151645": "xgrammar matcher rejected token 151645",
    "w1_weight_scale_2 must match w3_weight_scale_2": "gate and up global scales differ",
    "Error 803: system has unsupported display driver / cuda driver combination": "NVML: Driver/library version mismatch",
    "CUDA out of memory. Tried to allocate": "CUDA_ERROR_OUT_OF_MEMORY: wanted",
    "cudaMalloc failed: out of memory": "device 0 is out of memory",
    "data is not within the file bounds, model is corrupted or incomplete": "ends at byte 17179869184: the gguf file is truncated",
    "Killed signal terminated program cc1plus": "nvcc exited with status 137",
    "Out of range float values are not JSON compliant": "logprobs must be finite: logprob 1 is -inf",
    "GPU has fallen off the bus.": "GPU is lost.",
    "address already in use": "port 18779 is already in use",
    "bytes wanted, none to be had": "bytes: cannot allocate memory",
    "The size of tensor a (3072) must match the size of tensor b (6144) at non-singleton dimension 1":
        "weight gate_up_proj: expected dtype uint8 but got bfloat16",
    "must lie within the 2886512 data bytes of the file": "but the safetensors file is truncated",
}
WORKER = re.compile(r"(?<![A-Za-z])(TP|RANK |\[1,|\[rank)(\d+)")
QUIET = re.compile(r"^(?!.*(rror|Traceback|File \"|Killed|xit code|raise |fatal|Failed|WARN|died|Init COMPLETE|\[Autotuner\]))"
                   r"(.*\b(INFO|NCCL INFO)\b|\[\d{4}-\d\d-\d\d |llama_model_loader|load_tensors|\d{4}-\d\d-\d\dT)")
NOISE = ["INFO 01-12 10:00:00 [loader.py:61] layer {i} of 94 packed", "INFO 01-12 10:00:00 [topology.py:9] link {i}: x16, gen 5",
         "INFO 01-12 10:00:00 [memory.py:140] pool {i}: 0 errors, 12.1 GiB free", "INFO 01-12 10:00:00 [metrics.py:7] error_rate=0.0 step {i}"]


class Variants:
    def __init__(self, logs, out):
        self.logs, self.out, self.expected = logs, out, {}

    def add(self, name, lines, want, packed=False, newline="\n"):
        data = (newline.join(lines) + newline).encode()
        if packed:
            name, data = name + ".gz", gzip.compress(data, 1)
        with open(os.path.join(self.out, name), "wb") as f:
            f.write(data)
        self.expected[name] = {k: want[k] for k in ("cause", "options") if k in want}

    def permuted(self, name, lines, want, rng):
        """Neighbouring quiet lines before the cause change places; the workers change their numbers."""
        root = want.get("line", len(lines)) - 1
        lines = list(lines)
        at = 0
        while at < root:
            end = at
            while end < root and end - at < 5 and QUIET.match(lines[end]):
                end += 1
            block = lines[at:end]
            rng.shuffle(block)
            lines[at:end] = block
            at = max(end, at + 1)
        numbers = list(range(8))
        rng.shuffle(numbers)
        number = lambda m: m.group(1) + str(numbers[int(m.group(2))] if int(m.group(2)) < 8 else m.group(2))
        self.add(f"permuted-{name}", [WORKER.sub(number, x) for x in lines], want)

    def interleaved(self, name, lines, want, rng):
        """A worker that has no trouble writes between all lines, also inside tracebacks."""
        mixed = []
        for i, line in enumerate(lines):
            mixed.append(line)
            for _ in range(rng.choice((0, 1, 1, 2))):
                mixed.append(f"(Worker_TP9 pid=9999) {rng.choice(NOISE).format(i=i)}")
        self.add(f"interleaved-{name}", mixed, want)

    def cut(self, name, lines, want, rng):
        """The start is gone, or what followed the cause."""
        root = want.get("line", len(lines)) - 1
        if want["cause"] == "UNKNOWN" and "line" not in want:
            root = max(0, len(lines) - 14)
        self.add(f"headless-{name}", lines[rng.randint(1, max(1, root)):], want)
        if want["cause"] in ("ENGINE_STUCK", "P2P_HANG", "UNKNOWN"):
            return  # it is what follows that tells
        end = len(lines) if root >= len(lines) - 2 else rng.randint(root + 1, len(lines))
        if want["cause"] == "HEALTHY":
            end = rng.randint(3, len(lines))
        self.add(f"tailless-{name}", lines[:end], want)

    def wrapped(self, name, lines, want, rng):
        stamp = lambda i: f"2026-02-03T{4 + i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}.000000000Z"
        timed = want["cause"] in ("P2P_HANG",)  # its own clock tells
        colour = lambda x: re.sub(r"\b(INFO|ERROR|WARNING|Error|error|memory|device)\b", "\x1b[1;31m\\1\x1b[0m", x)
        self.add(f"colour-{name}", [colour(x) for x in lines], want, newline="\r\n")
        self.add(f"packed-{name}", lines, want, packed=True)
        if timed or lines[0].startswith(("{", "2026")):
            return
        self.add(f"docker-{name}", [json.dumps({"log": colour(x) + "\n", "stream": "stderr", "time": stamp(i)}) for i, x in enumerate(lines)], want)
        self.add(f"pod-{name}", [f"{stamp(i)} stderr F {x}" for i, x in enumerate(lines)], want)
        if not re.match(r"[A-Z][a-z]{2} \d\d ", lines[0]):
            self.add(f"journal-{name}", [f"Feb 03 {4 + i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d} node7 server[77]: {x}" for i, x in enumerate(lines)], want)
        self.add(f"compose-{name}", [f"server-1  | {x}" for x in lines], want)

    def reworded(self, name, lines, want):
        for old, new in REWORDED.items():
            if any(old in x for x in lines) and want["cause"] != "HEALTHY":
                self.add(f"reworded-{name}", [x.replace(old, new) for x in lines], want)
                return

    def write(self, seeds):
        with open(os.path.join(self.logs, "expected.json")) as f:
            labelled = json.load(f)
        for name, want in labelled.items():
            with open(os.path.join(self.logs, name), encoding="utf-8", newline="") as f:
                lines = f.read().rstrip("\n").split("\n")
            self.reworded(name, lines, want)
            for seed in range(seeds):
                rng = random.Random(f"{name} {seed}")
                for make in (self.permuted, self.interleaved, self.cut, self.wrapped if seed == 0 else None):
                    if make is not None:
                        make(f"{seed}-{name}", lines, want, rng)
        with open(os.path.join(self.out, "expected.json"), "w") as f:
            json.dump(self.expected, f, indent=1)
        return len(self.expected)


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    print(Variants(sys.argv[1], sys.argv[2]).write(int(sys.argv[3]) if len(sys.argv) > 3 else 3), "variants")
