// Constants of the C interface are the numbers of the C++ enumerations' values.
#pragma once

#include <cstdint>

namespace dsv4rt::c_api {

template <class Enum>
constexpr bool equals(std::int32_t constant, Enum value) {
  return constant == static_cast<std::int32_t>(value);
}

}  // namespace dsv4rt::c_api
