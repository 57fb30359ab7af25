// One random operation on a cache.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <stdexcept>

namespace dsv4rt::property {

// Small numbers, so that limits are hit all the time. Fields are taken modulo what makes sense, so
// that every value is a valid operation and shrinking needs no care.
struct Operation {
  std::uint8_t kind = 0;
  std::uint16_t a = 0;
  std::uint16_t b = 0;
  std::uint16_t c = 0;
};
// By the name that the program's machine has for it.
std::ostream& operator<<(std::ostream& out, const Operation& operation);

// The manager did something that the model did not.
struct Divergence : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace dsv4rt::property
