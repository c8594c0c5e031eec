// A batch as kernels read it: an image in memory that host and device share, copied to its fixed place on the device.
// There are two images, taken in turn: one may be filled while the copy of the other has not begun.
#pragma once
#include <span>

#include "ops/batch.h"
#include "ops/sample.h"
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
  // After upload(): ids[row] = token of results[ids[row]] for the first `rows`, 0 where it is none. For a step that is
  // enqueued before anybody has seen the results of the one ahead of it.
  void take_ids(const SampleResult* results, int rows, gpu::Stream* stream);

 private:
  Limits limits_;
  Place& place_;
  int32_t *images_[2] = {}, *host_ = nullptr, *device_ = nullptr;  // host_: the image that was filled last
  int64_t used_ = 0;                                               // words of the image
  DeviceBatch batch_;
};

}  // namespace mettle
