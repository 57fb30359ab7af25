// A setup and a list of random operations on it, and how a failing one is made smaller.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <rapidcheck.h>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "operation.h"

namespace dsv4rt::property {

template <class Setup>
struct RandomScenario {
  Setup setup;
  std::vector<Operation> operations;
};

template <class Setup>
std::ostream& operator<<(std::ostream& out, const RandomScenario<Setup>& scenario) {
  out << scenario.setup << "\n  operations {kind, a, b, c}:";
  for (const Operation& operation : scenario.operations) out << "\n  " << operation;
  return out;
}

template <class T>
T pick(rc::Random& random, std::initializer_list<T> values) {
  return values.begin()[random.next() % values.size()];
}

inline std::vector<Operation> random_operations(rc::Random& random, std::size_t count) {
  std::vector<Operation> operations;
  operations.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random.next();
    operations.push_back({.kind = static_cast<std::uint8_t>(bits >> 48),
                          .a = static_cast<std::uint16_t>(bits),
                          .b = static_cast<std::uint16_t>(bits >> 16),
                          .c = static_cast<std::uint16_t>(bits >> 32)});
  }
  return operations;
}

inline rc::Seq<Operation> simpler_operations(const Operation& operation) {
  std::vector<Operation> simpler;
  for (std::uint16_t Operation::*field : {&Operation::a, &Operation::b, &Operation::c}) {
    const std::uint16_t value = operation.*field;
    for (const int smaller : {0, value / 2, value - 1}) {
      if (smaller < 0 || smaller >= value) continue;
      simpler.push_back(operation);
      simpler.back().*field = static_cast<std::uint16_t>(smaller);
    }
  }
  return rc::seq::fromContainer(simpler);
}

// Fewer operations first, then smaller numbers in them; the setup belongs to the seed.
template <class Setup>
rc::Seq<RandomScenario<Setup>> simpler_scenarios(const RandomScenario<Setup>& scenario) {
  const auto with = [setup = scenario.setup](std::vector<Operation> operations) {
    return RandomScenario<Setup>{setup, std::move(operations)};
  };
  return rc::seq::concat(rc::seq::map(rc::shrink::removeChunks(scenario.operations), with),
                         rc::seq::map(rc::shrink::eachElement(scenario.operations, simpler_operations), with));
}

// `make_setup` draws a setup from a rc::Random&.
template <class Setup, class MakeSetup>
rc::Gen<RandomScenario<Setup>> random_scenarios(MakeSetup make_setup, std::size_t operations) {
  return rc::Gen<RandomScenario<Setup>>([=](rc::Random random, int) {
    RandomScenario<Setup> scenario;
    scenario.setup = make_setup(random);
    scenario.operations = random_operations(random, operations);
    return rc::shrinkable::shrinkRecur(std::move(scenario),
                                       [](const auto& of) { return simpler_scenarios<Setup>(of); });
  });
}

// The random scenario of a seed: empty if `divergence` of it is, otherwise what diverges and the smallest scenario
// found that does.
template <class Setup, class MakeSetup, class FindDivergence>
std::string check_seed(const std::string& machine, std::uint64_t seed, MakeSetup make_setup, std::size_t operations,
                       FindDivergence divergence) {
  rc::detail::TestParams params;
  params.seed = seed;
  params.maxSuccess = 1;
  rc::detail::TestMetadata metadata;
  metadata.id = machine + ", seed " + std::to_string(seed);
  const auto property = [=] {
    const auto scenario = *random_scenarios<Setup>(make_setup, operations).as("scenario");
    const std::string failure = divergence(scenario);
    if (!failure.empty()) RC_FAIL(failure);
  };
  const rc::detail::TestResult result = rc::detail::checkTestable(property, metadata, params);
  if (result.is<rc::detail::SuccessResult>()) return {};
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  return metadata.id + "\n" + message.str();
}

}  // namespace dsv4rt::property
