// What a tensor is, without its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/tensor_dtype.h"

namespace dsv4rt {

struct TensorDeclaration {
  std::string name;
  TensorDtype dtype = TensorDtype::kU8;
  std::vector<std::int64_t> shape;
};

}  // namespace dsv4rt
