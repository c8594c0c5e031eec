// A decoder of [join -> mixer -> join -> moe] x layers: what the Qwen families have in common. An architecture's file
// turns its config into a DecoderSpec.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/attention_block.h"
#include "models/gdn_block.h"
#include "models/model.h"
#include "models/moe_block.h"

namespace mettle {

enum class Mixer : uint8_t { kAttention, kGdn };

struct DecoderSpec {
  ModelInfo info;
  std::vector<Mixer> layers;
  AttentionShape attention;
  GdnShape gdn;
  MoeShape moe;
  float eps = 1e-6f;
  bool norm_plus_one = false;
  bool tied_head = false;
  std::vector<std::string> prefixes;                         // of "embed_tokens"; the first present is meant
  std::vector<std::string> heads;                            // names of the output head; the first present is meant
  std::vector<std::pair<std::string, std::string>> ignored;  // prefix of tensors deliberately not used, why
};

std::unique_ptr<Model> make_decoder(DecoderSpec spec, WeightSource& source, const ModelOptions& options);

}  // namespace mettle
