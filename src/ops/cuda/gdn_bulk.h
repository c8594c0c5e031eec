// Decode of 17 to 256 rows with the projections and the output product by product_bulk.h; what lies between is
// gdn_decode's.
#pragma once
#include "ops/cuda/gdn_recurrent.h"
#include "ops/cuda/product_bulk.h"

namespace mettle::cuda {

inline bool gdn_bulk_takes(const GdnProblem& p) {
  return bulk_takes(p.in_format) && bulk_takes(p.out_format) && p.ba_format == WeightFormat::kBf16;
}
inline bool gdn_bulk_takes(const GdnRecurrent& a) { return gdn_decodes(a) && bulk_takes(a.rows); }
template <class Carver>
BulkScratch gdn_bulk_scratch(Carver& c, const GdnProblem& p, int64_t rows) {
  return bulk_scratch(c, rows, std::max<int64_t>(p.hidden, int64_t{p.value_heads} * p.dv), p.hidden, p.hidden);
}

void gdn_bulk(const GdnRecurrent& a, const BulkScratch& scratch, const GdnWeights& weights, const uint16_t* x,
              float* partial, void* stream);
// Its projections alone; clears the tickets.
void gdn_bulk_project(const GdnRecurrent& a, const BulkScratch& scratch, const GdnWeights& weights, const uint16_t* x,
                      void* stream);

}  // namespace mettle::cuda
