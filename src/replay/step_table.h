// A step-time table: what whole steps of an engine took on a machine, measured at some shapes.
//
// A JSON file:
//
//   {
//     "format": "dsv4rt-step-table",
//     "version": 1,
//     "provenance": {            // texts, for people and reports; "device" must be there
//       "device": "NVIDIA H200", "commit": "...", "date": "2026-11-23", "shapes": "DeepSeek-V4-Flash, 43 layers", ...
//     },
//     "points": [
//       {"kind": "decode", "sequences": 32, "context": 32768, "tokens": 1, "microseconds": 4201},
//       {"kind": "prefill", "sequences": 1, "context": 0, "tokens": 8192, "microseconds": 222000}
//     ]
//   }
//
// sequences: in the step. context: cached tokens of every sequence before the step. tokens: new tokens of every
// sequence in the step; of a decode step 1, or 1 + drafts. At least one decode point with tokens 1 and one prefill
// point, no shape twice. How times between the points are found: step_time_model.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4rt/status.h"

namespace dsv4rt::replay {

enum class StepKind : std::uint8_t { kDecode, kPrefill };

struct StepPoint {
  StepKind kind = StepKind::kDecode;
  std::int64_t sequences = 1;
  std::int64_t context_tokens = 0;
  std::int64_t tokens = 1;  // new ones of each sequence
  double microseconds = 0;
};

struct StepTable {
  std::vector<std::pair<std::string, std::string>> provenance;  // name, text; in the file's order of names
  std::vector<StepPoint> points;

  // kNotFound or kBadInput naming file, field, value and what is accepted.
  static Result<StepTable> from_file(const std::filesystem::path& path);
  // The same for JSON text; `source` stands for the file in messages.
  static Result<StepTable> from_json(std::string_view text, std::string_view source);
  // What from_json runs last, and what a table made otherwise should pass.
  [[nodiscard]] Status validate(std::string_view source) const;
  [[nodiscard]] std::string to_json() const;
};

}  // namespace dsv4rt::replay
