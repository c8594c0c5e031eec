// mettle inspect: what is in a checkpoint, whether it fits, how fast memory lets it be.
#include <fmt/format.h>

#include "cli/inspection.h"
#include "cli/model_flags.h"

namespace mettle {

int command_inspect(int argc, char** argv) {
  InspectionRequest r;
  FormatFlags formats;
  bool json = false;
  CLI::App app(
      "What is in a checkpoint (formats, bytes, anomalies), whether and how it fits on a device, the tokens/s that\n"
      "its memory bandwidth allows, and what other engines need while they load it. Reads headers and small tensors;\n"
      "a config.json alone is enough.",
      "mettle inspect");
  app.footer(
      "Examples:\n  mettle inspect\n  mettle inspect config.json --device sm120 --tp-size 8\n"
      "  mettle inspect Qwen/Qwen3-30B-A3B --device sm90 --context-length 32768 --concurrency 16 --json");
  app.add_option("MODEL", r.model, "folder, config.json or name of a model; the embedded one when left out")
      ->check(not_empty());
  app.add_option("--device", r.device,
                 "sm80 sm86 sm89 sm90 sm100 sm103 sm120 sm121: as if it were here; cpu, cuda, cuda:N: this machine's; "
                 "auto: a GPU when there is one")
      ->capture_default_str();
  app.add_option("--tp-size,--tensor-parallel-size,--tp", r.tp_size, "ranks the model is cut for")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--context-length,--max-model-len,--ctx-size", r.context_length,
                 "tokens of a sequence; 0: the model's context")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--concurrency", r.concurrency, "sequences at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  add_format_flags(app, formats);
  app.add_flag("--json", json, "JSON on standard output");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  r.formats = formats.options();
  const Inspection i = inspect(r);
  fmt::print("{}", json ? inspection_json(i) : inspection_text(i));
  return 0;
}

}  // namespace mettle
