#include "diagnose/needle_scanner.h"

#include <algorithm>
#include <cctype>
#include <deque>

namespace mettle::diagnose {
namespace {

struct Node {
  std::vector<int> child;
  int fail = 0;
  std::vector<uint32_t> ends;  // needles that end here, by the node itself or by its suffixes
};

uint8_t lower(char c) { return static_cast<uint8_t>(std::tolower(static_cast<unsigned char>(c))); }

}  // namespace

NeedleScanner::NeedleScanner(const std::vector<std::string>& needles) : seen_(needles.size(), 0) {
  // Columns: one per byte that some needle uses, column 0 for all others.
  uint8_t columns = 1;
  for (const std::string& needle : needles)
    for (const char c : needle) {
      const uint8_t low = lower(c);
      if (class_[low] != 0) continue;
      class_[low] = columns++;
      if (std::islower(low) != 0) class_[static_cast<uint8_t>(std::toupper(low))] = class_[low];
    }
  columns_ = columns;
  std::vector<Node> nodes(1, Node{std::vector<int>(columns_, -1), 0, {}});
  for (uint32_t i = 0; i < needles.size(); ++i) {
    int at = 0;
    for (const char c : needles[i]) {
      int& child = nodes[at].child[class_[lower(c)]];
      if (child < 0) {
        const int made = static_cast<int>(nodes.size());
        child = made;
        nodes.push_back(Node{std::vector<int>(columns_, -1), 0, {}});
        at = made;
      } else {
        at = child;
      }
    }
    nodes[at].ends.push_back(i);
  }
  std::deque<int> queue;
  for (uint32_t c = 0; c < columns_; ++c) {
    int& child = nodes[0].child[c];
    if (child < 0) {
      child = 0;
    } else {
      queue.push_back(child);
    }
  }
  while (!queue.empty()) {
    const int at = queue.front();
    queue.pop_front();
    const Node& fallback = nodes[nodes[at].fail];
    nodes[at].ends.insert(nodes[at].ends.end(), fallback.ends.begin(), fallback.ends.end());
    for (uint32_t c = 0; c < columns_; ++c) {
      int& child = nodes[at].child[c];
      if (child < 0) {
        child = nodes[nodes[at].fail].child[c];
      } else {
        nodes[child].fail = nodes[nodes[at].fail].child[c];
        queue.push_back(child);
      }
    }
  }
  // States that end something are numbered last, so that the inner loop asks one comparison.
  std::vector<uint32_t> order(nodes.size());
  uint32_t quiet = 0;
  for (const Node& node : nodes) quiet += node.ends.empty() ? 1 : 0;
  uint32_t silent = 0, loud = quiet;
  for (size_t i = 0; i < nodes.size(); ++i) order[i] = nodes[i].ends.empty() ? silent++ : loud++;
  first_output_ = quiet * columns_;
  next_.resize(nodes.size() * columns_);
  std::vector<const Node*> by_order(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    by_order[order[i]] = &nodes[i];
    for (uint32_t c = 0; c < columns_; ++c) next_[order[i] * columns_ + c] = order[nodes[i].child[c]] * columns_;
  }
  outputs_start_.reserve(nodes.size() + 1);
  for (const Node* node : by_order) {
    outputs_start_.push_back(static_cast<uint32_t>(outputs_.size()));
    outputs_.insert(outputs_.end(), node->ends.begin(), node->ends.end());
  }
  outputs_start_.push_back(static_cast<uint32_t>(outputs_.size()));
}

void NeedleScanner::scan(std::string_view line, std::vector<NeedleHit>& hits) {
  ++scan_;
  uint32_t state = 0;
  const uint32_t* next = next_.data();
  for (size_t i = 0; i < line.size(); ++i) {
    state = next[state + class_[static_cast<uint8_t>(line[i])]];
    if (state < first_output_) continue;
    const uint32_t row = state / columns_;
    for (uint32_t k = outputs_start_[row]; k < outputs_start_[row + 1]; ++k) {
      const uint32_t needle = outputs_[k];
      if (seen_[needle] == scan_) continue;
      seen_[needle] = scan_;
      hits.push_back({needle, static_cast<uint32_t>(i + 1)});
    }
  }
}

}  // namespace mettle::diagnose
