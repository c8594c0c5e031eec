#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace mettle {
namespace {

uint64_t mixed(uint64_t x) {  // splitmix64's finaliser
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Written so that NaN fails.
void check_range(const char* name, double value, double least, double most) {
  if (!(value >= least && value <= most))
    fail(Code::kInvalidRequest, fmt::format("{}: must be in {}..{}, got {}", name, least, most, value), name);
}

bool has_penalty(const SamplingParams& p) { return p.repetition != 1 || p.presence != 0 || p.frequency != 0; }

TokenCount& count_of(std::vector<TokenCount>& counts, int32_t id) {
  const auto at = std::lower_bound(counts.begin(), counts.end(), id,
                                   [](const TokenCount& c, int32_t wanted) { return c.id < wanted; });
  if (at != counts.end() && at->id == id) return *at;
  return *counts.insert(at, TokenCount{.id = id});
}

}  // namespace

double random_number(uint64_t seed, uint64_t position) {
  const uint64_t bits = mixed(mixed(seed + 0x9E3779B97F4A7C15u) + (position + 1) * 0xD1342543DE82EF95u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void check_sampling(const SamplingParams& p, int vocab) {
  check_range("temperature", p.temperature, 0, 2);
  if (!(p.top_p > 0 && p.top_p <= 1))
    fail(Code::kInvalidRequest, fmt::format("top_p: must be above 0 and at most 1, got {}", p.top_p), "top_p");
  check_range("min_p", p.min_p, 0, 1);
  if (p.top_k < 0) fail(Code::kInvalidRequest, fmt::format("top_k: must be at least 0, got {}", p.top_k), "top_k");
  if (!(p.repetition > 0 && p.repetition <= 10))
    fail(Code::kInvalidRequest, fmt::format("repetition_penalty: must be above 0 and at most 10, got {}", p.repetition),
         "repetition_penalty");
  check_range("presence_penalty", p.presence, -2, 2);
  check_range("frequency_penalty", p.frequency, -2, 2);
  if (p.max_tokens < 1)
    fail(Code::kInvalidRequest, fmt::format("max_tokens: must be at least 1, got {}", p.max_tokens), "max_tokens");
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens)
    fail(Code::kInvalidRequest,
         fmt::format("min_tokens: must be in 0..max_tokens ({}), got {}", p.max_tokens, p.min_tokens), "min_tokens");
  if (p.top_logprobs < -1 || p.top_logprobs > 20)
    fail(Code::kInvalidRequest, fmt::format("top_logprobs: must be in 0..20, got {}", p.top_logprobs), "top_logprobs");
  if (p.logit_bias.size() > 1024)
    fail(Code::kInvalidRequest, fmt::format("logit_bias: must have at most 1024 entries, got {}", p.logit_bias.size()),
         "logit_bias");
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab)
      fail(Code::kInvalidRequest, fmt::format("logit_bias: token ids must be in 0..{}, got {}", vocab - 1, id),
           "logit_bias");
    if (!(bias >= -100 && bias <= 100))
      fail(Code::kInvalidRequest, fmt::format("logit_bias: values must be in -100..100, got {} for token {}", bias, id),
           "logit_bias");
  }
  if (p.stop_ids.size() > 1024)
    fail(Code::kInvalidRequest,
         fmt::format("stop_token_ids: must have at most 1024 entries, got {}", p.stop_ids.size()), "stop_token_ids");
  for (const int32_t id : p.stop_ids)
    if (id < 0 || id >= vocab)
      fail(Code::kInvalidRequest, fmt::format("stop_token_ids: must be in 0..{}, got {}", vocab - 1, id),
           "stop_token_ids");
}

void prepare_sampling(Sequence& s, std::span<const int32_t> eos_ids) {
  const SamplingParams& p = s.params;
  s.stop_ids = p.stop_ids;
  if (!p.ignore_eos) s.stop_ids.insert(s.stop_ids.end(), eos_ids.begin(), eos_ids.end());
  std::sort(s.stop_ids.begin(), s.stop_ids.end());
  s.stop_ids.erase(std::unique(s.stop_ids.begin(), s.stop_ids.end()), s.stop_ids.end());

  const auto by_id = [](const TokenBias& a, const TokenBias& b) { return a.id < b.id; };
  for (const auto& [id, bias] : p.logit_bias) s.biases.push_back({id, bias});
  std::stable_sort(s.biases.begin(), s.biases.end(), by_id);
  // The last of several values for one id counts, as in a JSON object.
  const auto same = [](const TokenBias& a, const TokenBias& b) { return a.id == b.id; };
  s.biases.erase(s.biases.begin(), std::unique(s.biases.rbegin(), s.biases.rend(), same).base());
  for (const int32_t id : s.stop_ids) s.biases_and_stops.push_back({id, -std::numeric_limits<float>::infinity()});
  for (const TokenBias& b : s.biases)
    if (!stops(s, b.id)) s.biases_and_stops.push_back(b);
  std::sort(s.biases_and_stops.begin(), s.biases_and_stops.end(), by_id);

  if (!has_penalty(p)) return;
  for (const int32_t id : s.tokens) s.counts.push_back({.id = id, .in_prompt = true});
  std::sort(s.counts.begin(), s.counts.end(), [](const TokenCount& a, const TokenCount& b) { return a.id < b.id; });
  s.counts.erase(std::unique(s.counts.begin(), s.counts.end(),
                             [](const TokenCount& a, const TokenCount& b) { return a.id == b.id; }),
                 s.counts.end());
  s.counts.reserve(s.counts.size() + static_cast<size_t>(s.most_new));
}

bool sampled_alone(const Sequence& s) { return !has_penalty(s.params); }

SampleRow sample_row(const Sequence& s, int ahead) {
  const SamplingParams& p = s.params;
  const int generated = s.generated() + ahead;
  return {.temperature = static_cast<float>(p.temperature),
          .top_k = p.top_k,
          .top_p = static_cast<float>(p.top_p),
          .min_p = static_cast<float>(p.min_p),
          .repetition = static_cast<float>(p.repetition),
          .presence = static_cast<float>(p.presence),
          .frequency = static_cast<float>(p.frequency),
          .random = random_number(s.seed, static_cast<uint64_t>(generated)),
          .top_logprobs = std::max(p.top_logprobs, 0),
          .counts = s.counts,
          .biases = generated < p.min_tokens ? s.biases_and_stops : s.biases};
}

bool stops(const Sequence& s, int32_t token) { return std::binary_search(s.stop_ids.begin(), s.stop_ids.end(), token); }

void append_token(Sequence& s, int32_t token) {
  s.tokens.push_back(token);
  if (has_penalty(s.params)) ++count_of(s.counts, token).in_output;
}

}  // namespace mettle
