// Two reports of one log side by side: what differs, and which differences are more than the luck of single requests.
//
// The bound of a difference is that of batch means (Law, Simulation Modeling and Analysis, ch. 9), taken of pairs.
// Every report has the numbers of up to 32 groups of requests that follow each other in the log, the same groups in
// every run of it. With d[g] the difference of group g, G groups, s the standard deviation of d, r its correlation with
// the difference of the group before (0 to 0.9: a long queue outlasts a group), f = sqrt((1 + r) / (1 - r)) and t
// Student's 97.5 % point for G - 1 degrees of freedom, a mean, a share or a percentile is uncertain by
// t * s * f / sqrt(G), a total by t * s * f * sqrt(G). Nothing is drawn at random. For percentiles it is a rule of
// thumb, since those of a group are not parts of the whole's; and it does not see what befalls all groups alike: the
// clock of a GPU, another load on the machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/document.h"

namespace dsv4rt::report {

struct ComparedNumber {
  std::string name;
  double a = 0;
  double b = 0;
  std::optional<double> bound;  // unset: not known

  [[nodiscard]] double difference() const noexcept { return b - a; }
  // Unset for a == 0.
  [[nodiscard]] std::optional<double> relative() const noexcept;
  [[nodiscard]] bool beyond_noise() const noexcept;
};

struct DifferingField {
  std::string field;
  std::string a;
  std::string b;
};

struct Comparison {
  std::vector<DifferingField> settings;  // options, machines and builds that are not the same
  std::vector<ComparedNumber> numbers;
};

// Of the reports in `a` and `b`. kMismatch naming every field for which they are not of the same requests: execute
// (only model and real go together), log, block size, limits of what was read; kBadInput for what is no report.
Result<Comparison> compare_reports(const Document& a, std::string_view a_name, const Document& b,
                                   std::string_view b_name);

}  // namespace dsv4rt::report
