#include "prove/problem_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace mettle {
namespace {

using nlohmann::json;

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                                     WeightFormat::kFp8Block, WeightFormat::kNvfp4};

// One function per problem lists its fields; a Writer or a Reader walks over them.
struct Writer {
  json out;
  template <class T>
  void operator()(const char* name, T& value) {
    if constexpr (std::is_same_v<T, WeightFormat> || std::is_same_v<T, Activation> || std::is_same_v<T, CacheFormat>)
      out[name] = name_of(value);
    else
      out[name] = value;
  }
};

struct Reader {
  const json& in;
  size_t fields = 1;  // op

  template <class T>
  void operator()(const char* name, T& value) {
    ++fields;
    const auto at = in.find(name);
    if (at == in.end()) fail(Code::kInvalidRequest, fmt::format("problem.{}: is missing in {}", name, in.dump()));
    const auto wrong = [&] {
      fail(Code::kInvalidRequest, fmt::format("problem.{}: has a wrong value, {}", name, at->dump()));
    };
    if constexpr (std::is_same_v<T, WeightFormat>) {
      for (const WeightFormat f : kFormats)
        if (at->is_string() && name_of(f) == at->template get_ref<const std::string&>()) return void(value = f);
      wrong();
    } else if constexpr (std::is_same_v<T, Activation>) {
      for (const Activation a : {Activation::kF32, Activation::kBf16})
        if (at->is_string() && name_of(a) == at->template get_ref<const std::string&>()) return void(value = a);
      wrong();
    } else if constexpr (std::is_same_v<T, CacheFormat>) {
      for (const CacheFormat c : {CacheFormat::kActivation, CacheFormat::kE4M3})
        if (at->is_string() && name_of(c) == at->template get_ref<const std::string&>()) return void(value = c);
      wrong();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!at->is_boolean()) wrong();
      value = at->template get<bool>();
    } else if constexpr (std::is_same_v<T, int>) {
      if (!at->is_number_integer() || at->template get<int64_t>() < 0 || at->template get<int64_t>() > 1 << 30) wrong();
      value = at->template get<int>();
    } else {
      if (!at->is_number()) wrong();
      value = at->template get<T>();
    }
  }
};

template <class F>
void fields(F& f, EmbedProblem& p) {
  f("vocab", p.vocab), f("hidden", p.hidden);
}
template <class F>
void fields(F& f, JoinProblem& p) {
  f("hidden", p.hidden), f("ranks", p.ranks), f("plus_one", p.plus_one), f("eps", p.eps), f("activation", p.activation);
}
template <class F>
void fields(F& f, LinearProblem& p) {
  f("in", p.in), f("out", p.out), f("format", p.format), f("activation", p.activation);
}
template <class F>
void fields(F& f, MoeProblem& p) {
  f("hidden", p.hidden), f("experts", p.experts), f("top_k", p.top_k), f("width", p.width);
  f("shared_width", p.shared_width), f("shared_gate", p.shared_gate), f("renormalise", p.renormalise);
  f("format", p.format), f("shared_format", p.shared_format), f("router_format", p.router_format);
  f("activation", p.activation);
}
template <class F>
void fields(F& f, AttentionProblem& p) {
  f("hidden", p.hidden), f("heads", p.heads), f("kv_heads", p.kv_heads), f("head_dim", p.head_dim);
  f("rotary_dim", p.rotary_dim), f("gate", p.gate), f("qk_norm", p.qk_norm), f("norm_plus_one", p.norm_plus_one);
  f("eps", p.eps), f("qkv_format", p.qkv_format), f("out_format", p.out_format), f("activation", p.activation);
  f("cache", p.cache), f("block_size", p.block_size);
}
template <class F>
void fields(F& f, GdnProblem& p) {
  f("hidden", p.hidden), f("key_heads", p.key_heads), f("value_heads", p.value_heads), f("dk", p.dk), f("dv", p.dv);
  f("conv", p.conv), f("eps", p.eps), f("in_format", p.in_format), f("ba_format", p.ba_format);
  f("out_format", p.out_format), f("activation", p.activation);
}
template <class F>
void fields(F& f, SampleProblem& p) {
  f("vocab", p.vocab), f("usable", p.usable);
}

template <class Problem>
bool read(const json& in, AnyProblem& out) {
  if (in["op"].get_ref<const std::string&>() != OpOf<Problem>::kName) return false;
  Problem p;
  Reader reader{in};
  fields(reader, p);
  if (reader.fields != in.size())
    fail(Code::kInvalidRequest, fmt::format("problem: has unknown fields, {}", in.dump()));
  out = p;
  return true;
}

}  // namespace

json to_json(const AnyProblem& problem) {
  return std::visit(
      [](auto p) {
        Writer writer;
        writer.out["op"] = OpOf<decltype(p)>::kName;
        fields(writer, p);
        return writer.out;
      },
      problem);
}

AnyProblem problem_from_json(const json& in) {
  if (!in.is_object() || !in.contains("op") || !in["op"].is_string())
    fail(Code::kInvalidRequest, fmt::format("problem: must be an object with an op, got {}", in.dump()));
  AnyProblem out;
  if (read<EmbedProblem>(in, out) || read<JoinProblem>(in, out) || read<LinearProblem>(in, out) ||
      read<MoeProblem>(in, out) || read<AttentionProblem>(in, out) || read<GdnProblem>(in, out) ||
      read<SampleProblem>(in, out))
    return out;
  fail(Code::kInvalidRequest,
       fmt::format("problem.op: must be embed, join, linear, moe, attention, gdn or sample, got {}", in["op"].dump()));
}

}  // namespace mettle
