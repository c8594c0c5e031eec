// The words that people know from SGLang, vLLM and TensorRT-LLM for the backends of an op, in one table: which of ours
// computes by the same method, or why none does on this device.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/verdict.h"
#include "tensor/device.h"

namespace mettle {

struct ForeignName {
  std::string_view op;                  // moe, linear, attention, gdn
  std::string_view word;                // lower case, with underscores
  std::string_view engines;             // who calls it so
  std::string_view method;              // what it is, in a few words
  uint32_t where = 0;                   // bits of the devices on which the other engines have it, see foreign_names.cpp
  VerdictCode code = VerdictCode::kOk;  // not OK: we have no backend of that method, and why
  std::string_view gpu, cpu;            // OK: ours, by kind of device; empty: none there
};
std::span<const ForeignName> foreign_names();

// Backends of ours that are planned and have no code: a name that exists later means the same.
std::span<const ForeignName> planned_backends();

// By op and word, of both tables; "FLASH_ATTN" and "flash-attn" are flash_attn. Null for an unknown word.
const ForeignName* find_foreign_name(std::string_view op, std::string_view word);

struct Naming {
  Verdict verdict;      // not OK: the word is refused on this device
  std::string backend;  // OK: ours
  std::string line;     // OK: "marlin: served by w4a16_mma, the same method: ..."
};
Naming translate(const ForeignName& name, const Device& device);

// Our own names of an op for a kind of device, as its list has them; both kinds without one.
std::vector<std::string> backend_names(std::string_view op);
std::vector<std::string> backend_names(std::string_view op, DeviceKind kind);
// "use cpu_gemv, cpu_gemm or auto": ours but the plain one and these.
std::string what_instead(std::string_view op, DeviceKind kind, const std::vector<std::string>& but = {});

}  // namespace mettle
