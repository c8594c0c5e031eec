// No sort of the vocabulary: tokens are dealt into bins by their distance from the best one, and a bin is gathered and
// sorted only when a limit (top-k, top-p) or the drawn number falls into it. What a limit keeps is a head of the order,
// so its mass says all about it.
#include "ops/cpu/sample_row.h"

#include <bit>
#include <cfloat>

namespace mettle::cpu {
namespace {

constexpr int kBins = 4096;
constexpr float kBinsPerNat = 128;  // the last bin begins 32 nats below the best token: what is there has no mass
constexpr int kLook = 64;           // ids that are asked at once whether one lies in a bin
constexpr uint16_t kNoBin = 0xFFFF;

int64_t pieces_of(const SampleProblem& p) { return (p.usable + SampleScratch::kPiece - 1) / SampleScratch::kPiece; }

}  // namespace

int sample_slices(const SampleProblem& problem, int members) {
  return static_cast<int>(std::clamp<int64_t>(pieces_of(problem) / 2, 1, members));
}

SampleScratch SampleScratch::carve(reference::Carver& c, const SampleProblem& p, int slices) {
  const int64_t n = p.usable, pieces = pieces_of(p);
  SampleScratch s;
  s.slices = slices;
  s.value = c.take<float>(n);
  s.exact = c.take<double>(n);
  s.weight = c.take<float>(n);
  s.bin = c.take<uint16_t>(pieces * kPiece);
  s.order = c.take<int32_t>(n);
  s.top = c.take<float>(pieces);
  s.share = c.take<float>(pieces);
  s.piece = c.take<Piece>(pieces);
  s.slice = c.take<Slice>(slices);
  s.bin_mass = c.take<int64_t>(int64_t{slices} * kBins);
  s.bin_count = c.take<int32_t>(int64_t{slices} * kBins);
  return s;
}

SampleRowParts::SampleRowParts(const Kernels& kernels, const SampleProblem& problem, const SampleScratch& scratch,
                               const float* logits, const SampleRow& row)
    : kernels_(kernels),
      p_(problem),
      s_(scratch),
      logits_(logits),
      row_(row),
      pieces_(pieces_of(problem)),
      wanted_(std::clamp(std::min(row.top_logprobs, p_.usable), 0, SampleScratch::kAlternatives)),
      value_(logits) {
  if (row.biases.empty() && row.counts.empty()) return;
  exact_ = s_.exact;
  value_ = s_.value;
}

SampleRowParts::Ids SampleRowParts::piece_ids(int64_t piece) const {
  const auto begin = static_cast<int>(piece * SampleScratch::kPiece);
  return {begin, std::min(begin + SampleScratch::kPiece, p_.usable)};
}

// Rounding to float32 keeps the order but for new ties, which the exact values decide.
bool SampleRowParts::before(int32_t a, int32_t b) const {
  const double x = exact_ != nullptr ? exact_[a] : static_cast<double>(value_[a]),
               y = exact_ != nullptr ? exact_[b] : static_cast<double>(value_[b]);
  return x != y ? x > y : a < b;
}

// Bias and mask, then penalties, in float64.
void SampleRowParts::adjust(Ids ids) {
  std::copy(logits_ + ids.begin, logits_ + ids.end, exact_ + ids.begin);
  for (const TokenBias& b : row_.biases)
    if (b.id >= ids.begin && b.id < ids.end) exact_[b.id] += static_cast<double>(b.bias);
  for (const TokenCount& c : row_.counts) {
    if (c.id < ids.begin || c.id >= ids.end) continue;
    double& l = exact_[c.id];
    if (c.in_prompt || c.in_output > 0) l = l > 0 ? l / row_.repetition : l * row_.repetition;
    if (c.in_output > 0) l -= static_cast<double>(row_.presence) + static_cast<double>(row_.frequency) * c.in_output;
  }
  for (int i = ids.begin; i < ids.end; ++i) s_.value[i] = static_cast<float>(exact_[i]);
}

void SampleRowParts::note_alternatives(SampleScratch::Slice& own, Ids ids) const {
  for (int32_t i = ids.begin; i < ids.end; ++i) {
    if (own.held == wanted_ && !(logits_[i] > logits_[own.ids[own.held - 1]])) continue;
    int at = own.held < wanted_ ? own.held++ : own.held - 1;
    for (; at > 0 && logits_[i] > logits_[own.ids[at - 1]]; --at) own.ids[at] = own.ids[at - 1];
    own.ids[at] = i;
  }
}

void SampleRowParts::look(int slice) {
  const Span pieces = share_of(pieces_, slice, s_.slices);
  SampleScratch::Slice& own = s_.slice[slice];
  own.held = 0;
  if (exact_ != nullptr)
    adjust({static_cast<int>(pieces.begin * SampleScratch::kPiece), piece_ids(pieces.end - 1).end});
  for (int64_t at = pieces.begin; at < pieces.end; ++at) {
    const Ids ids = piece_ids(at);
    const int count = ids.end - ids.begin;
    SampleScratch::Piece& piece = s_.piece[at];
    float& top = s_.top[at];
    piece.finite = kernels_.max_finite(logits_ + ids.begin, count, &top);
    if (!piece.finite) return;  // settle() sees it, whatever else is there
    piece.sum = kernels_.exp_sum(logits_ + ids.begin, top, 1.f, nullptr, count);
    piece.most = top;
    if (exact_ != nullptr) {
      piece.best = ids.begin;
      for (int32_t i = ids.begin + 1; i < ids.end; ++i)
        if (value_[i] >= value_[piece.best] && before(i, piece.best)) piece.best = i;
      piece.most = value_[piece.best];
    }
    if (wanted_ > 0 && (own.held < wanted_ || top > logits_[own.ids[own.held - 1]])) note_alternatives(own, ids);
  }
}

int32_t SampleRowParts::best_token() const {
  int64_t best = 0;
  for (int64_t i = 1; i < pieces_; ++i)
    if (exact_ != nullptr ? before(s_.piece[i].best, s_.piece[best].best) : s_.top[i] > s_.top[best]) best = i;
  if (exact_ != nullptr) return s_.piece[best].best;
  const Ids ids = piece_ids(best);
  return static_cast<int32_t>(std::find(logits_ + ids.begin, logits_ + ids.end, s_.top[best]) - logits_);
}

// Slices hold ascending ids, so of equal logits the first slice has the lowest.
void SampleRowParts::tell_alternatives(SampleResult& result) const {
  for (int s = 0; s < s_.slices; ++s) s_.slice[s].held = 0;  // now: how many of them are told
  for (int i = 0; i < wanted_; ++i) {
    SampleScratch::Slice* from = nullptr;
    for (int s = 0; s < s_.slices; ++s) {
      SampleScratch::Slice& own = s_.slice[s];
      const Span pieces = share_of(pieces_, s, s_.slices);
      const int64_t most = piece_ids(pieces.end - 1).end - pieces.begin * SampleScratch::kPiece;
      if (own.held >= std::min<int64_t>(wanted_, most)) continue;
      if (from == nullptr || logits_[own.ids[own.held]] > logits_[from->ids[from->held]]) from = &own;
    }
    const int32_t id = from->ids[from->held++];
    result.top_ids[i] = id;
    result.top_logprobs[i] = static_cast<float>(logits_[id] - log_sum_);
  }
}

bool SampleRowParts::settle(SampleResult& result) {
  result = {};
  // The token stays -1. What a slice left unseen lies behind such a piece.
  for (int64_t i = 0; i < pieces_; ++i)
    if (!s_.piece[i].finite) return false;
  const float top = *std::max_element(s_.top, s_.top + pieces_);
  kernels_.exp_sum(s_.top, top, 1.f, s_.share, pieces_);
  double sum = 0;
  for (int64_t i = 0; i < pieces_; ++i) sum += s_.piece[i].sum * static_cast<double>(s_.share[i]);
  log_sum_ = static_cast<double>(top) + std::log(sum);
  best_ = best_token();
  most_ = value_[best_];
  if (most_ == -INFINITY) return false;  // every token is forbidden
  tell_alternatives(result);
  result.token = best_;
  result.logprob = static_cast<float>(logits_[best_] - log_sum_);
  if (!(row_.temperature > 0) || most_ == INFINITY) return false;
  factor_ = std::min(1.f / row_.temperature, FLT_MAX);
  unit_ = std::ldexp(1.f, 62 - std::bit_width(static_cast<uint32_t>(p_.usable)));  // all of weight 1: below 2^62
  return true;
}

int SampleRowParts::bin_of(float value) const {
  const float distance = (most_ - value) * kBinsPerNat * factor_;
  return static_cast<int>(std::min(static_cast<float>(kBins - 1), distance));
}

void SampleRowParts::deal(int slice) {
  const Span pieces = share_of(pieces_, slice, s_.slices);
  int64_t* const bin_mass = s_.bin_mass + int64_t{slice} * kBins;
  int32_t* const bin_count = s_.bin_count + int64_t{slice} * kBins;
  std::fill_n(bin_mass, kBins, 0);
  std::fill_n(bin_count, kBins, 0);
  int64_t all = 0, heavy = 0;
  for (int64_t at = pieces.begin; at < pieces.end; ++at) {
    const Ids ids = piece_ids(at);
    const int count = ids.end - ids.begin;
    const float* value = value_ + ids.begin;
    float* weight = s_.weight + ids.begin;
    uint16_t* bin = s_.bin + ids.begin;
    kernels_.exp_sum(value, most_, factor_, weight, count);
    for (int i = 0; i < count; ++i) bin[i] = static_cast<uint16_t>(bin_of(value[i]));
    std::fill(bin + count, bin + SampleScratch::kPiece, kNoBin);
    for (int i = 0; i < count; ++i) {
      const auto mass = static_cast<int64_t>(weight[i] * unit_);
      bin_mass[bin[i]] += mass;
      ++bin_count[bin[i]];
      all += mass;
    }
    if (row_.min_p > 0)
      for (int i = 0; i < count; ++i)
        if (!(weight[i] < row_.min_p)) heavy += static_cast<int64_t>(weight[i] * unit_);
  }
  s_.slice[slice].mass = all;
  s_.slice[slice].heavy = heavy;
}

int64_t SampleRowParts::mass_of_bin(int bin) const {
  int64_t mass = 0;
  for (int s = 0; s < s_.slices; ++s) mass += s_.bin_mass[int64_t{s} * kBins + bin];
  return mass;
}

// The ids of a bin, in order.
void SampleRowParts::collect(int bin) {
  if (collected_ == bin) return;
  collected_ = bin;
  int count = 0;
  for (int64_t at = 0; at < pieces_; ++at) {
    if (bin_of(s_.piece[at].most) > bin) continue;
    const auto begin = static_cast<int>(at * SampleScratch::kPiece);
    for (int i = begin; i < begin + SampleScratch::kPiece; i += kLook) {
      uint16_t any = 0;
      for (int j = i; j < i + kLook; ++j) any |= static_cast<uint16_t>(s_.bin[j] == bin);
      if (any == 0) continue;
      for (int j = i; j < i + kLook; ++j)
        if (s_.bin[j] == bin) s_.order[count++] = j;
    }
  }
  collected_count_ = count;
  const auto less = [this](int32_t x, int32_t y) { return before(x, y); };
  if (!std::is_sorted(s_.order, s_.order + count, less)) std::sort(s_.order, s_.order + count, less);
}

int64_t SampleRowParts::mass_of_first(int count) {
  int64_t sum = 0;
  for (int b = 0; b < kBins; ++b) {
    int here = 0;
    for (int s = 0; s < s_.slices; ++s) here += s_.bin_count[int64_t{s} * kBins + b];
    const int64_t mass = here == 0 ? 0 : mass_of_bin(b);
    if (here >= count && mass > 0) {
      collect(b);
      for (int i = 0; i < count; ++i) sum += mass_of(s_.order[i]);
    }
    if (here >= count) return sum;
    sum += mass;
    count -= here;
  }
  return sum;
}

// The mass of the shortest head that has at least `limit`.
int64_t SampleRowParts::mass_until(int64_t limit) {
  int64_t sum = 0;
  for (int b = 0; b < kBins; ++b) {
    const int64_t mass = mass_of_bin(b);
    if (sum + mass < limit) {
      sum += mass;
      continue;
    }
    collect(b);
    for (int i = 0; sum < limit && i < collected_count_; ++i) sum += mass_of(s_.order[i]);
    return sum;
  }
  return sum;
}

// The first token whose running sum exceeds `target`.
int32_t SampleRowParts::token_beyond(int64_t target) {
  int64_t sum = 0;
  for (int b = 0; b < kBins; ++b) {
    const int64_t mass = mass_of_bin(b);
    if (sum + mass <= target) {
      sum += mass;
      continue;
    }
    collect(b);
    for (int i = 0; i < collected_count_; ++i)
      if ((sum += mass_of(s_.order[i])) > target) return s_.order[i];
  }
  return best_;
}

void SampleRowParts::draw(SampleResult& result) {
  int64_t kept = 0, heavy = 0;
  for (int s = 0; s < s_.slices; ++s) kept += s_.slice[s].mass, heavy += s_.slice[s].heavy;
  if (row_.top_k > 0 && row_.top_k < p_.usable) kept = mass_of_first(row_.top_k);
  if (row_.top_p < 1) {
    // The token that crosses stays.
    const double limit = std::ceil(static_cast<double>(row_.top_p) * static_cast<double>(kept));
    kept = mass_until(std::clamp<int64_t>(static_cast<int64_t>(limit), 1, kept));
  }
  if (row_.min_p > 0) kept = std::clamp<int64_t>(heavy, 1, kept);
  const auto target = static_cast<int64_t>(row_.random * static_cast<double>(kept));
  result.token = token_beyond(std::min(target, kept - 1));
  result.logprob = static_cast<float>(logits_[result.token] - log_sum_);
}

}  // namespace mettle::cpu
