// A batch as kernels read it: an image in memory that host and device share, copied to its fixed place on the device.
#pragma once
#include <span>

#include "ops/batch.h"
#include "tensor/gpu.h"
#include "tensor/place.h"

namespace mettle {

class BatchStage {
 public:
  struct Limits {
    int rows = 0, sequences = 0, logit_rows = 0;
    int64_t blocks = 0;  // entries of all block tables together
  };
  // How far to fill up with padding: a captured graph's bucket. 0: nothing is added.
  struct Padding {
    int rows = 0, sequences = 0, logit_rows = 0, most_context = 0, most_q = 0;
  };

  BatchStage(const Limits& limits, Place& place);
  // Writes the image; the result stands until the next fill, its arrays are in place after upload().
  const DeviceBatch& fill(const Batch& batch, const int32_t* ids, std::span<const int32_t> logit_rows,
                          const Padding& padding);
  const DeviceBatch& fill(const Batch& batch, const int32_t* ids, std::span<const int32_t> logit_rows) {
    return fill(batch, ids, logit_rows, Padding{});
  }
  void upload(gpu::Stream* stream);  // null: now

 private:
  Limits limits_;
  Place& place_;
  int32_t *host_ = nullptr, *device_ = nullptr;
  int64_t used_ = 0;  // words of the image
  DeviceBatch batch_;
};

}  // namespace mettle
