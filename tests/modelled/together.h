// A launch whose blocks wait for each other: a kernel source is included behind `#define launch launch_together`, with
// the dynamic shared memory that it declares as SHARED.
#pragma once
#include "cuda_runtime.h"
#include "ops/cuda/launch.h"

#define METTLE_TOGETHER(SHARED)                                                                            \
  namespace mettle::cuda {                                                                                 \
  namespace {                                                                                              \
  alignas(128) constinit thread_local uint8_t SHARED[modelled::kSharedBytes] = {};                         \
  template <class... P, class... A>                                                                        \
  void launch_together(const Launch& l, void (*kernel)(P...), A... args) {                                 \
    modelled::run_together(                                                                                \
        l.grid, l.block, [] { return SHARED; }, l.shared_bytes, [&] { kernel(static_cast<P>(args)...); }); \
  }                                                                                                        \
  }                                                                                                        \
  }
