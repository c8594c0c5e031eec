#!/usr/bin/env python3
"""How far transformers' own BF16 run of the embedded model is from its float32 run: the yardstick of BF16 activations.

  bf16_run.py MODEL_FOLDER GOLDEN_FOLDER OUT_JSON

Weights are dequantised in float32, then the whole model is cast to bfloat16. Needs torch, transformers and safetensors
(a CPU is enough). Committed output: tests/golden/bf16_run.json, made with torch 2.15.0 and transformers 5.24.0.
"""
import glob
import json
import statistics
import sys

import torch
import transformers
from safetensors import safe_open
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantised(packed, block_scale, global_scale):
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(packed.shape[0], -1)  # low nibble first
    scale = block_scale.float().repeat_interleave(16, dim=1) * global_scale.float()
    return E2M1[codes.long()] * scale


def load(folder):
    stored = {}
    for path in sorted(glob.glob(f"{folder}/*.safetensors")):
        with safe_open(path, "pt") as file:
            stored.update({name: file.get_tensor(name) for name in file.keys()})
    weights = {}
    for name, tensor in stored.items():
        if name.startswith("mtp.") or name.endswith(("weight_scale", "weight_scale_2", "input_scale")):
            continue
        if tensor.dtype == torch.uint8:
            module = name.removesuffix(".weight")
            tensor = dequantised(tensor, stored[f"{module}.weight_scale"], stored[f"{module}.weight_scale_2"])
        weights[name.replace("model.language_model.", "model.")] = tensor.float()
    return weights


def fused_experts(weights, layers, experts):
    """transformers keeps the experts of a layer in two stacked tensors."""
    for layer in range(layers):
        at = f"model.layers.{layer}.mlp.experts"
        take = lambda e, which: weights.pop(f"{at}.{e}.{which}_proj.weight")
        gate_up, down = [], []
        for e in range(experts):
            gate_up.append(torch.cat([take(e, "gate"), take(e, "up")]))
            down.append(take(e, "down"))
        weights[f"{at}.gate_up_proj"] = torch.stack(gate_up)
        weights[f"{at}.down_proj"] = torch.stack(down)
    return weights


@torch.no_grad()
def main(folder, golden, out):
    config = Qwen3_5MoeTextConfig(**json.load(open(f"{folder}/config.json"))["text_config"])
    config._attn_implementation = "eager"
    model = Qwen3_5MoeForCausalLM(config).eval()
    weights = fused_experts(load(folder), config.num_hidden_layers, config.num_experts)
    model.load_state_dict(weights, strict=True)
    model.to(torch.bfloat16)
    prompts = json.load(open(f"{golden}/golden.json"))["prompts"]
    rows = []
    with safe_open(f"{golden}/golden.safetensors", "pt") as file:
        for p in prompts:
            logits = model(torch.tensor([p["ids"]]), use_cache=False).logits[0, -1].float()
            want = file.get_tensor(f"logits.{p['id']}")
            rows.append({"id": p["id"], "relative_l2": ((logits - want).norm() / want.norm()).item()})
            print(p["id"], p["name"], rows[-1]["relative_l2"], flush=True)
    result = {"about": "transformers' bfloat16 run against its float32 run: relative L2 of the last logits; tools/oracle/bf16_run.py",
              "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
              "median_relative_l2": statistics.median(r["relative_l2"] for r in rows), "prompts": rows}
    json.dump(result, open(out, "w"), indent=1)
    open(out, "a").write("\n")
    print("median", result["median_relative_l2"])


if __name__ == "__main__":
    main(*sys.argv[1:4])
