#include "ops/foreign_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "ops/problem.h"

namespace mettle {
namespace {

using enum VerdictCode;

// Devices as bits, so that a row of the table can say where a word's code exists.
constexpr int kSms[] = {80, 86, 89, 90, 100, 103, 120, 121};
constexpr uint32_t bit_of(int sm) {
  uint32_t bit = 0, at = 1;
  for (const int known : kSms) {
    if (known / 10 == sm / 10 && known <= sm) bit = at;
    at <<= 1;
  }
  return bit;
}
constexpr uint32_t k8x = bit_of(80) | bit_of(86) | bit_of(89), k90 = bit_of(90), k10x = bit_of(100) | bit_of(103),
                   k12x = bit_of(120) | bit_of(121), kBlackwell = k10x | k12x, kGpus = k8x | k90 | kBlackwell,
                   kCpu = 1u << 16, kAmd = 1u << 17;

// Sources: the choices of SGLang's and vLLM's flags and TensorRT-LLM's moe_config and attn_backend, and what their
// code asks of the device: flashinfer_trtllm and trtllm_mha are prebuilt for SM100 and SM103 (allow-listing SM120 was
// turned down by their maintainers, TensorRT-LLM#11997); DeepGEMM has no SM120 code (DeepGEMM#236); SGLang's fa3 asks
// for compute capability 8.x or 9.x; FlashInfer's CUTLASS experts on SM90 are MXFP4, not NVFP4.
constexpr std::string_view kSglang = "SGLang", kVllm = "vLLM", kTrt = "TensorRT-LLM", kSv = "SGLang, vLLM",
                           kAll = "SGLang, vLLM, TensorRT-LLM";
constexpr std::string_view kFp4 = "block-scaled FP4 instructions, FP4 activations";
constexpr std::string_view kFp8 = "FP8 instructions, FP8 activations";
constexpr std::string_view kTrtllm = "TensorRT-LLM's prebuilt fused kernels";
constexpr std::string_view kDequant = "4-bit weights dequantised in registers, BF16 activations, mma.sync";
constexpr std::string_view kTiles = "rows sorted by expert, tiles of weights dequantised in registers";
constexpr std::string_view kFlash = "tiles of keys with a running softmax over a paged cache";
constexpr std::string_view kLatent = "latent attention (MLA)";
constexpr std::string_view kPlain = "plain code, for comparison";

constexpr ForeignName kTable[] = {
    {"moe", "flashinfer_trtllm", kSv, kTrtllm, k10x, kNotBuilt},
    {"moe", "flashinfer_trtllm_routed", kSglang, kTrtllm, k10x, kNotBuilt},
    {"moe", "trtllm", kTrt, kTrtllm, k10x, kNotBuilt},
    {"moe", "flashinfer_cutlass", kSv, kFp4, kBlackwell, kNotBuilt},
    {"moe", "cutlass", kAll, kFp4, kBlackwell, kNotBuilt},
    {"moe", "flashinfer_cutedsl", kSv, kFp4, kBlackwell, kNotBuilt},
    {"moe", "cutedsl", kTrt, kFp4, kBlackwell, kNotBuilt},
    {"moe", "flashinfer_mxfp4", kSglang, "experts in MXFP4", k90 | kBlackwell, kFormatUnsupported},
    {"moe", "triton_kernel", kSglang, "experts in MXFP4", kGpus, kFormatUnsupported},
    {"moe", "deep_gemm", kSv, kFp8, k90 | k10x, kNotBuilt},
    {"moe", "deepgemm", kTrt, kFp8, k90 | k10x, kNotBuilt},
    {"moe", "marlin", kSv, kDequant, kGpus, kOk, "w4a16_mma"},
    {"moe", "triton", kAll, kTiles, kGpus, kOk, "tiles"},
    {"moe", "humming", kSv, kTiles, kGpus, kOk, "tiles"},
    {"moe", "emulation", kVllm, kPlain, kGpus | kCpu, kOk, "reference", "reference"},
    {"moe", "vanilla", kTrt, kPlain, kGpus | kCpu, kOk, "reference", "reference"},
    {"moe", "aiter", kSv, "AMD's kernels", kAmd, kNotBuilt},

    {"linear", "flashinfer_cudnn", kSv, kFp4, kBlackwell, kNotBuilt},
    {"linear", "flashinfer_cutlass", kSv, kFp4, kBlackwell, kNotBuilt},
    {"linear", "flashinfer_cutedsl", kSglang, kFp4, kBlackwell, kNotBuilt},
    {"linear", "flashinfer_trtllm", kSv, kTrtllm, k10x, kNotBuilt},
    {"linear", "cutlass", kAll, kFp4, kBlackwell, kNotBuilt},
    {"linear", "marlin", kSv, kDequant, kGpus, kOk, "mma"},
    {"linear", "emulation", kVllm, kPlain, kGpus | kCpu, kOk, "reference", "reference"},

    {"attention", "flashinfer", kAll, kFlash, kGpus, kOk, "flash"},
    {"attention", "fa3", kSglang, kFlash, k8x | k90, kOk, "flash"},
    {"attention", "flash_attn", kVllm, kFlash, kGpus, kOk, "flash"},
    {"attention", "triton", kSglang, kFlash, kGpus, kOk, "flash"},
    {"attention", "triton_attn", kVllm, kFlash, kGpus, kOk, "flash"},
    {"attention", "trtllm_mha", kSglang, kTrtllm, k10x, kNotBuilt},
    {"attention", "fa4", kSglang, "FlashAttention 4, warp-specialised", k90 | k10x, kNotBuilt},
    {"attention", "trtllm_mla", kSglang, kLatent, k10x, kSemanticsDiffer},
    {"attention", "cutlass_mla", kSv, kLatent, k10x, kSemanticsDiffer},
    {"attention", "flashmla", kSv, kLatent, k90 | k10x, kSemanticsDiffer},
    {"attention", "torch_native", kSglang, kPlain, kGpus | kCpu, kOk, "reference", "reference"},
    {"attention", "torch_sdpa", kVllm, kPlain, kGpus | kCpu, kOk, "reference", "reference"},
    {"attention", "vanilla", kTrt, kPlain, kGpus | kCpu, kOk, "reference", "reference"},
    {"attention", "intel_amx", kSglang, "blocked code of the processor", kCpu, kOk, "", "cpu"},
    {"attention", "aiter", kSv, "AMD's kernels", kAmd, kNotBuilt},

    {"gdn", "triton", kSglang, "the recurrence in one kernel, state in registers", kGpus, kOk, "recurrent"},
    {"gdn", "cutedsl", kSglang, "kernels compiled at first use", k90 | kBlackwell, kNotBuilt},
    {"gdn", "flashinfer", kSglang, "chunked prefill on wgmma or tcgen05", k90 | k10x, kNotBuilt},
};

// Backends of ours that have a name, a method and a place, and no code yet.
constexpr std::string_view kPlanned = "planned";
constexpr ForeignName kPlannedTable[] = {
    {"moe", "w4a4_mma", kPlanned, "block-scaled FP4 mma.sync, FP4 activations", k12x, kNotBuilt},
    {"moe", "jit", kPlanned, "compiled at first use for exactly this device and shape", kGpus, kNotBuilt},
    {"linear", "cublaslt", kPlanned, "cuBLASLt's block-scaled product, FP4 activations", kBlackwell, kNotBuilt},
    {"linear", "cudnn", kPlanned, "cuDNN's block-scaled product, FP4 activations", kBlackwell, kNotBuilt},
};

std::string plain(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool exists_on(uint32_t where, const Device& device) {
  if (device.kind == DeviceKind::kCpu) return (where & kCpu) != 0;
  return (where & kGpus) == kGpus ? device.sm >= kSms[0] : (where & bit_of(device.sm)) != 0;
}

std::string places(uint32_t where) {
  std::string out;
  const auto add = [&](std::string_view name) { out += fmt::format("{}{}", out.empty() ? "" : " or ", name); };
  if (where & kAmd) add("an AMD GPU");
  if ((where & kGpus) == kGpus) {
    add("a GPU from sm80 on");
  } else {
    for (const int sm : kSms)
      if (where & bit_of(sm)) add(fmt::format("sm{}", sm));
  }
  if (where & kCpu) add("cpu");
  return out;
}

template <class Op>
void add_names(std::vector<std::string>& names, const DeviceKind* kind) {
  for (const Backend<Op>* b : backends_of<Op>())
    if ((kind == nullptr || b->kind == *kind) && std::find(names.begin(), names.end(), b->name) == names.end())
      names.emplace_back(b->name);
}

std::vector<std::string> names_of(std::string_view op, const DeviceKind* kind) {
  std::vector<std::string> names;
  if (op == EmbedOp::kName) add_names<EmbedOp>(names, kind);
  if (op == JoinOp::kName) add_names<JoinOp>(names, kind);
  if (op == LinearOp::kName) add_names<LinearOp>(names, kind);
  if (op == MoeOp::kName) add_names<MoeOp>(names, kind);
  if (op == AttentionOp::kName) add_names<AttentionOp>(names, kind);
  if (op == GdnOp::kName) add_names<GdnOp>(names, kind);
  if (op == SampleOp::kName) add_names<SampleOp>(names, kind);
  return names;
}

}  // namespace

std::span<const ForeignName> foreign_names() { return kTable; }
std::span<const ForeignName> planned_backends() { return kPlannedTable; }

const ForeignName* find_foreign_name(std::string_view op, std::string_view word) {
  const std::string wanted = plain(word);
  for (const std::span<const ForeignName> table : {foreign_names(), planned_backends()})
    for (const ForeignName& row : table)
      if (row.op == op && row.word == wanted) return &row;
  return nullptr;
}

std::string what_instead(std::string_view op, DeviceKind kind, const std::vector<std::string>& but) {
  std::vector<std::string> names = backend_names(op, kind);
  std::erase_if(names, [&](const std::string& n) {
    return n == "reference" || std::find(but.begin(), but.end(), n) != but.end();
  });
  return fmt::format("use {}{}auto", fmt::join(names, ", "), names.empty() ? "" : " or ");
}

Naming translate(const ForeignName& name, const Device& device) {
  const bool gpu = device.kind == DeviceKind::kCuda;
  const std::string remedy = what_instead(name.op, device.kind), needed = places(name.where);
  if (name.engines == kPlanned && exists_on(name.where, device))
    return {refuse(kNotBuilt, "no code", std::string(name.method),
                   fmt::format("{} is planned and not written yet: {}", name.word, name.method), remedy),
            "", ""};
  if (!exists_on(name.where, device))
    return {refuse(kWrongSm, device.name, needed,
                   fmt::format("{} stands for {}; that exists for {} alone", name.word, name.method, needed), remedy),
            "", ""};
  if (name.code == kNotBuilt)
    return {refuse(kNotBuilt, "no backend of that method", std::string(name.method),
                   fmt::format("{} stands for {}; mettle has no such backend", name.word, name.method), remedy),
            "", ""};
  if (name.code != kOk)
    return {refuse(name.code, std::string(name.method), name.op == "moe" ? "NVFP4, FP8 or BF16" : "grouped queries",
                   fmt::format("{} stands for {}; no model of mettle has that", name.word, name.method), remedy),
            "", ""};
  const std::string ours(gpu ? name.gpu : name.cpu);
  return {
      {}, ours, fmt::format("{} ({}): served by {}, the same method: {}", name.word, name.engines, ours, name.method)};
}

std::vector<std::string> backend_names(std::string_view op) { return names_of(op, nullptr); }
std::vector<std::string> backend_names(std::string_view op, DeviceKind kind) { return names_of(op, &kind); }

}  // namespace mettle
