// Options that every command with a model has: which one, how it is loaded, which backends may serve it.
#pragma once
#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "models/model.h"

namespace mettle {

// Formats that are made of the checkpoint's when they are asked for.
struct FormatFlags {
  std::string dense = "auto", kv_cache = "auto";
  // For a command that plans with BF16 activations.
  ModelOptions options() const;
};
void add_format_flags(CLI::App& app, FormatFlags& flags);
DenseDtype dense_of(const FormatFlags& flags);
// Fails with kInvalidRequest where the cache would hold another dtype than the one that is named.
CacheFormat cache_of(const FormatFlags& flags, Activation activation);

struct ModelFlags {
  std::string model;  // as typed; empty: the embedded one
  EngineOptions engine;
  FormatFlags formats;

  // Values that wait for resolve().
  std::string load_format = "auto", activation = "bf16", moe = "auto", linear = "auto", attention = "auto",
              gdn = "auto";
  int64_t max_total_tokens = 0;
};

// The flags that name a backend, by a name of ours or by a word of another engine (ops/foreign_names.h).
struct BackendFlag {
  std::string_view op, name, what;
};
std::span<const BackendFlag> backend_flags();

// Flags carry SGLang's names; vLLM's are second names of the same flag.
void add_model_flags(CLI::App& app, ModelFlags& options);

// Checks of one flag. A shell hands over "" for a variable that is not set, and what an empty name, key or host means
// is never what was asked for.
CLI::Validator not_empty();
CLI::Validator whole_number();  // of 64 bits; the parser of unsigned flags takes -1 for 2^64-1

// Parses argv. Returns -1 to go on, else the exit code: 0 after --help, 2 for a usage error, which is printed to
// standard error: an unknown flag with the list of the valid ones, a flag of another server with the reason why it is
// not here.
int parse_arguments(CLI::App& app, int argc, char** argv);

// Finds the model and fills options.engine. Fails with kBadModel or kInvalidRequest (also for a context that is too
// short to prove anything in); with kUnsupported and the reason
// where a backend was named by a word that this device or this program cannot follow.
void resolve(ModelFlags& options);
bool is_embedded(const ModelFlags& options);  // after resolve()

// Draws progress of proofs and loading on standard error.
std::function<void(const std::string&, uint64_t, uint64_t)> progress_on_stderr();

}  // namespace mettle
