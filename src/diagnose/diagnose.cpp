#include "diagnose/diagnose.h"

#include <fmt/format.h>

#include "base/error.h"
#include "diagnose/classifier.h"
#include "diagnose/collector.h"
#include "diagnose/facts.h"
#include "diagnose/log_reader.h"

namespace mettle::diagnose {
namespace {

const NeedleIndex& index() {
  static const NeedleIndex instance = index_of(table());
  return instance;
}

}  // namespace

struct Diagnoser::State {
  explicit State(Options o)
      : options(std::move(o)),
        collector(table(), index()),
        reader({[this](const std::string& file) { collector.begin_file(file, kernel_log); },
                [this](std::string_view line, uint64_t number) { collector.line(line, number); }},
               options.line_limit) {}

  Options options;
  bool kernel_log = false;
  Collector collector;
  LogReader reader;
};

Diagnoser::Diagnoser(Options options) {
  if (!options.device.empty() && sm_number(options.device) == 0)
    fail(Code::kInvalidRequest, fmt::format("--device: must be an SM such as sm120 or 12.0, got {}", options.device));
  state_ = std::make_unique<State>(std::move(options));
}
Diagnoser::~Diagnoser() = default;

void Diagnoser::read_path(const std::string& path) { state_->reader.read_path(path); }
void Diagnoser::read_text(std::string_view text, const std::string& file) { state_->reader.read_text(text, file); }
uint64_t Diagnoser::bytes() const { return state_->reader.bytes(); }
uint64_t Diagnoser::lines() const { return state_->reader.lines(); }

Diagnosis Diagnoser::finish() {
  state_->kernel_log = true;
  for (const std::string& path : state_->options.dmesg) state_->reader.read_path(path);
  Diagnosis d = classify(state_->collector.finish(), state_->options, table());
  for (const std::string& remark : state_->reader.remarks()) d.notes.push_back(remark);
  return d;
}

}  // namespace mettle::diagnose
