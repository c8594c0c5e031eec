// What tests need and users do not: a look at the logits, and an engine without proofs.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>

#include "engine/engine.h"
#include "models/choice_source.h"
#include "tensor/tensor_view.h"

namespace mettle {

struct ProbedRow {
  uint64_t request = 0;
  int position = 0;  // of the token whose successor is chosen
};

struct Probe {
  // On the engine's thread, before sampling: rows[i] is row i of logits [rows, vocab] f32. It may change them or throw.
  std::function<void(std::span<const ProbedRow> rows, const TensorView& logits)> on_logits;
  // On the engine's thread, within a step of one rank that runs while `route_steps`: the experts that a layer chose,
  // [rows, top_k]. Such steps run without graphs.
  std::shared_ptr<const std::atomic<bool>> route_steps;
  std::function<void(int layer, int top_k, std::span<const int32_t> experts)> on_routes;
  std::shared_ptr<ChoiceSource> choices;  // null: from proofs, as Engine::start does
  uint64_t watch_every = 0;               // steps; 0: as the guard has it
  // Counts steps that ran ahead (EngineLoop). A GPU's always do; on a CPU they do where it is there.
  std::shared_ptr<std::atomic<uint64_t>> ahead;
};

std::unique_ptr<Engine> start_probed(const EngineOptions& options, Probe probe);

}  // namespace mettle
