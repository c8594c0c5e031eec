#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "cli/inspection.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

// Decimal, as disks and data sheets count.
std::string size_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  return bytes >= 1e3 ? fmt::format("{:.1f} kB", bytes / 1e3) : fmt::format("{:.0f} B", bytes);
}
std::string size_text(int64_t bytes) { return size_text(static_cast<double>(bytes)); }

std::string count_text(int64_t count) {
  const auto n = static_cast<double>(count);
  return n >= 1e9   ? fmt::format("{:.3f} B", n / 1e9)
         : n >= 1e6 ? fmt::format("{:.2f} M", n / 1e6)
                    : fmt::format("{}", count);
}

std::string share(double part, double all) { return all > 0 ? fmt::format("{:.1f} %", 100 * part / all) : "-"; }

std::string contents_text(const Inspection& i) {
  Table table({"what", "format", "modules", "weights", "bytes", "share"});
  int64_t weights = 0, bytes = 0;
  for (const Content& c : i.contents) {
    weights += c.weights;
    bytes += c.bytes;
  }
  for (const Content& c : i.contents)
    table.add({c.kind + (c.used ? "" : " (not used)"), c.format, fmt::format("{}", c.modules), count_text(c.weights),
               size_text(c.bytes), share(static_cast<double>(c.bytes), static_cast<double>(bytes))});
  table.add({"all", "", "", count_text(weights), size_text(bytes), ""});
  return table.text({2, 3, 4, 5}) + "\n";
}

std::string some(const std::vector<std::string>& all) {
  std::string text;
  for (size_t n = 0; n < std::min<size_t>(all.size(), 5); ++n) text += fmt::format("  {}\n", all[n]);
  if (all.size() > 5) text += fmt::format("  and {} more\n", all.size() - 5);
  return text;
}

std::string findings_text(const Inspection& i) {
  std::string text;
  if (!i.refusal.empty()) text += fmt::format("not served by this program\n  {}\n\n", i.refusal);
  if (!i.missing.empty())
    text += fmt::format("{} weights are missing or of another size: it will not load\n{}\n", i.missing.size(),
                        some(i.missing));
  if (!i.unused.empty())
    text += fmt::format("{} tensors are used by nothing in this model: it will not load\n{}\n", i.unused.size(),
                        some(i.unused));
  for (const auto& [why, bytes] : i.kept_aside) text += fmt::format("kept aside: {}, {}\n", size_text(bytes), why);
  for (const Anomaly& a : i.anomalies.found)
    text += fmt::format("{}: {} ({}x, first {}{}{})\n", a.refused ? "refused at load" : "look at this", a.what, a.count,
                        a.first, a.value.empty() ? "" : ": ", a.value);
  if (i.formats == "the checkpoint")
    text += fmt::format("values read: {} small tensors, {}; {} larger ones are checked when they are loaded\n",
                        i.anomalies.tensors_read, size_text(i.anomalies.bytes_read), i.anomalies.tensors_left);
  return text.empty() ? text : text + "\n";
}

std::string device_text(const Inspection& i) {
  const std::string many = i.tp_size > 1 ? fmt::format("{} x ", i.tp_size) : "";
  const std::string memory = i.device.memory > 0 ? fmt::format(", {} each", size_text(i.device.memory)) : "";
  return fmt::format("{}{}: {}{}{}", i.device.kind == DeviceKind::kCuda ? many : "", i.device.name, i.device.model,
                     i.device.kind == DeviceKind::kCuda ? memory : "",
                     i.named ? " (a typical card, from the table)" : "");
}

std::string fit_text(const Inspection& i) {
  const Fit& f = *i.fit;
  const bool each = i.device.kind == DeviceKind::kCuda && i.tp_size > 1;
  Table table({each ? "memory of each GPU" : "memory", "bytes", ""});
  table.add({"  weights, packed", size_text(f.weights), ""});
  table.add(
      {"  scratch, at most", size_text(f.scratch), fmt::format("steps of 512 rows, {} rows of logits", f.sequences)});
  if (f.state_per_sequence > 0)
    table.add({"  state", size_text(f.state()),
               fmt::format("{} sequences of {}", f.sequences, size_text(f.state_per_sequence))});
  table.add({"  kv cache", size_text(f.kv()),
             fmt::format("{} sequences of {} tokens of {} bytes", f.sequences, f.context, f.kv_per_token)});
  table.add({"  in all", size_text(f.total()), fmt::format("of {} {}", size_text(f.memory), f.memory_is)});
  std::string text = table.text({1});
  if (f.fits())
    text += fmt::format("fits, {} are left\n", size_text(f.memory - f.total()));
  else if (f.free_for_caches() <= 0)
    text += fmt::format("does not fit: weights and scratch alone need {} more\n", size_text(-f.free_for_caches()));
  else
    text += fmt::format(
        "so much does not fit ({} more), but the weights do: {} sequences of {} tokens, or {} sequences of {} "
        "tokens\n",
        size_text(f.total() - f.memory), f.most_sequences(), f.context, f.sequences, f.most_context());
  return text + "\n";
}

std::string bounds_text(const Inspection& i) {
  const int many = i.bounds.back().sequences;
  double one_all = 0, many_all = 0;
  for (const Content& c : i.contents) {
    one_all += c.read_one;
    many_all += c.read_many;
  }
  const Bound& first = i.bounds.front();
  const Bound& last = i.bounds.back();
  one_all += first.state + first.kv;
  many_all += last.state + last.kv;
  Table reads({"read by a decode step", "1 sequence", "share", fmt::format("{} sequences", many), "share"});
  const auto add = [&](const std::string& what, double one, double of_many) {
    if (one > 0 || of_many > 0)
      reads.add({"  " + what, size_text(one), share(one, one_all), size_text(of_many), share(of_many, many_all)});
  };
  for (const Content& c : i.contents)
    add(fmt::format("{}, {}", c.kind, c.served.empty() ? c.format : c.served + " (requantised)"), c.read_one,
        c.read_many);
  add("state, read and written", first.state, last.state);
  add(fmt::format("kv cache at {} and {} tokens", first.context, last.context), first.kv, last.kv);
  add("in all", one_all, many_all);
  std::string text = reads.text({1, 2, 3, 4});
  if (i.experts > 0)
    text += fmt::format("experts read of {} in a layer: {:.1f} for 1 sequence, {:.1f} for {}\n", i.experts,
                        distinct_experts(i.experts, i.top_k, 1), distinct_experts(i.experts, i.top_k, many), many);
  text += "\n";
  if (i.bandwidth.bytes_per_second <= 0) return text + fmt::format("memory bandwidth: {}\n\n", i.bandwidth.source);
  Table bounds({"at most, by memory bandwidth", "tokens/s", "bytes a step"});
  for (const Bound& b : i.bounds)
    bounds.add({fmt::format("  {} sequence{} at {} tokens", b.sequences, b.sequences == 1 ? "" : "s", b.context),
                fmt::format("{:.0f}", b.tokens_per_second), size_text(b.bytes())});
  return text + bounds.text({1, 2}) +
         fmt::format("{:.0f} GB/s, {}; perfect sharding, no communication\n\n", i.bandwidth.bytes_per_second / 1e9,
                     i.bandwidth.source);
}

std::string shuffle_text(const Inspection& i) {
  if (i.shuffle.empty()) return "";
  Table table({"another engine's peak while it shuffles experts", "a GPU", "fits", "formula", "seen in"});
  for (const ShufflePeak& s : i.shuffle)
    table.add({"  " + s.way, size_text(s.bytes), s.fits ? "yes" : "no", s.formula, s.source});
  return table.text({1}) + "mettle packs one expert a thread at a time on the host: no second copy on the device\n";
}

}  // namespace

std::string inspection_text(const Inspection& i) {
  std::string text = fmt::format("model    {} ({}), formats from {}\n", i.model,
                                 i.architecture.empty() ? "architecture not known" : i.architecture, i.formats);
  if (i.layers > 0)
    text += fmt::format("         {} layers, context {}{}{}\n", i.layers, i.context,
                        i.experts > 0 ? fmt::format(", {} of {} experts", i.top_k, i.experts) : "",
                        i.mtp_layers > 0 ? fmt::format(", {} draft layer", i.mtp_layers) : "");
  text += fmt::format("device   {}\n\n", device_text(i)) + contents_text(i) + findings_text(i);
  if (i.fit) text += fit_text(i) + bounds_text(i) + shuffle_text(i);
  return text;
}

std::string inspection_json(const Inspection& i) {
  Json contents = Json::array(), anomalies = Json::array(), bounds = Json::array(), shuffle = Json::array(),
       aside = Json::array();
  for (const Content& c : i.contents)
    contents.push_back({{"kind", c.kind},
                        {"format", c.format},
                        {"served_as", c.served.empty() ? c.format : c.served},
                        {"used", c.used},
                        {"modules", c.modules},
                        {"weights", c.weights},
                        {"bytes", c.bytes},
                        {"read_one", c.read_one},
                        {"read_many", c.read_many}});
  for (const Anomaly& a : i.anomalies.found)
    anomalies.push_back(
        {{"what", a.what}, {"first", a.first}, {"value", a.value}, {"count", a.count}, {"refused", a.refused}});
  for (const Bound& b : i.bounds)
    bounds.push_back({{"context", b.context},
                      {"sequences", b.sequences},
                      {"weight_bytes", b.weights},
                      {"state_bytes", b.state},
                      {"kv_bytes", b.kv},
                      {"step_bytes", b.bytes()},
                      {"tokens_per_second", b.tokens_per_second}});
  for (const ShufflePeak& s : i.shuffle)
    shuffle.push_back(
        {{"way", s.way}, {"formula", s.formula}, {"source", s.source}, {"bytes", s.bytes}, {"fits", s.fits}});
  for (const auto& [why, bytes] : i.kept_aside) aside.push_back({{"why", why}, {"bytes", bytes}});
  Json fit = nullptr;
  if (i.fit)
    fit = {{"weights", i.fit->weights},
           {"scratch", i.fit->scratch},
           {"state_per_sequence", i.fit->state_per_sequence},
           {"kv_per_token", i.fit->kv_per_token},
           {"context", i.fit->context},
           {"sequences", i.fit->sequences},
           {"state", i.fit->state()},
           {"kv", i.fit->kv()},
           {"total", i.fit->total()},
           {"memory", i.fit->memory},
           {"memory_is", i.fit->memory_is},
           {"fits", i.fit->fits()},
           {"most_sequences", i.fit->most_sequences()},
           {"most_context", i.fit->most_context()}};
  const Json all = {
      {"model", i.model},
      {"architecture", i.architecture},
      {"formats", i.formats},
      {"refusal", i.refusal},
      {"layers", i.layers},
      {"context", i.context},
      {"experts", i.experts},
      {"top_k", i.top_k},
      {"mtp_layers", i.mtp_layers},
      {"contents", contents},
      {"files_bytes", i.files_bytes},
      {"missing", i.missing},
      {"unused", i.unused},
      {"kept_aside", aside},
      {"anomalies", anomalies},
      {"values_read",
       {{"tensors", i.anomalies.tensors_read}, {"bytes", i.anomalies.bytes_read}, {"left", i.anomalies.tensors_left}}},
      {"device", {{"name", i.device.name}, {"model", i.device.model}, {"memory", i.device.memory}, {"named", i.named}}},
      {"tp_size", i.tp_size},
      {"bandwidth", {{"bytes_per_second", i.bandwidth.bytes_per_second}, {"source", i.bandwidth.source}}},
      {"fit", fit},
      {"bounds", bounds},
      {"shuffle", shuffle}};
  // Names come from files that anybody may have made.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mettle
