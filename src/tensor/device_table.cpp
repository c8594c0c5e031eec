#include "tensor/device_table.h"

namespace mettle {
namespace {

// Sources. Shared memory a block may opt in to: CUDA C++ Programming Guide, technical specifications per compute
// capability (163 KB on 8.0, 99 KB on 8.6 and 8.9, 227 KB on 9.0 and 10.x, 99 KB on 12.x). That all of 12.x have
// 101376 B, not the 228 KiB that one report gives, was measured on three cards (flashinfer#3568, #4013), as on an H200
// 232448 B. Multiprocessors and memory: NVIDIA's descriptions of the cards; for Blackwell Ultra "up to 160", a card may
// have fewer. Targets and instructions: what nvcc 13.0 assembles (block-scaled mma.sync for 120a, 121a and 120f, not
// for plain 120; wgmma for 90a alone; tcgen05 for 100a and 103a).
constexpr int64_t kGb = 1'000'000'000;
constexpr size_t kShared80 = 163 * 1024, kSharedSmall = 99 * 1024, kSharedLarge = 227 * 1024;

constexpr DeviceFacts kTable[] = {
    {"sm80", 80, "A100", 108, kShared80, 80 * kGb, "80", ""},
    {"sm86", 86, "RTX A6000", 84, kSharedSmall, 48 * kGb, "86", ""},
    {"sm89", 89, "L40S", 142, kSharedSmall, 48 * kGb, "89", "FP8 mma.sync"},
    {"sm90", 90, "H200", 132, kSharedLarge, 141 * kGb, "90a", "wgmma (BF16, FP8)"},
    {"sm100", 100, "B200", 148, kSharedLarge, 180 * kGb, "100a", "tcgen05 (BF16, FP8, block-scaled FP4)"},
    {"sm103", 103, "B300", 160, kSharedLarge, 288 * kGb, "103a", "tcgen05 (BF16, FP8, block-scaled FP4)"},
    {"sm120", 120, "RTX PRO 6000 Blackwell", 188, kSharedSmall, 96 * kGb, "120a", "block-scaled FP4 mma.sync"},
    {"sm121", 121, "GB10", 48, kSharedSmall, 128 * kGb, "121a", "block-scaled FP4 mma.sync"},
};

}  // namespace

std::span<const DeviceFacts> device_table() { return kTable; }

std::optional<Device> device_of_table(std::string_view name) {
  for (const DeviceFacts& f : kTable)
    if (f.name == name)
      return Device{.kind = DeviceKind::kCuda,
                    .name = std::string(f.name),
                    .model = std::string(f.card),
                    .isas = {Isa::kScalar},
                    .sm = f.sm,
                    .multiprocessors = f.multiprocessors,
                    .shared_per_block = f.shared_per_block,
                    .memory = f.memory};
  return std::nullopt;
}

}  // namespace mettle
