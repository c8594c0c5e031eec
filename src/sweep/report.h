// What a sweep leaves for people: report.md, report.html (self-contained, with plots) and recipe/, the winner to take
// into production. All are written anew after each cell.
#pragma once
#include <string>
#include <vector>

#include "sweep/plan.h"
#include "sweep/sweep.h"

namespace mettle::sweep {

void write_reports(const Plan& plan, const std::vector<Row>& rows, int winner, const std::string& out);

std::string report_markdown(const Plan& plan, const std::vector<Row>& rows, int winner);
std::string report_html(const Plan& plan, const std::vector<Row>& rows, int winner);
// The table of cells as rows of texts, the first one the heading; the same in every form of the report.
std::vector<std::vector<std::string>> report_table(const Plan& plan, const std::vector<Row>& rows, int winner);

// Words as a shell reads them back.
std::string shell_words(const std::vector<std::string>& words);
// A word of a systemd unit's ExecStart or Environment.
std::string systemd_word(const std::string& word);
// Writes command.sh, environment, a unit and replay.py into out/recipe. Removes them when there is no winner.
void write_recipe(const Plan& plan, const std::vector<Row>& rows, int winner, const std::string& out);

}  // namespace mettle::sweep
