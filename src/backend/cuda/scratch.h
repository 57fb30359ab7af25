// Device memory for intermediates of a single operation.
#pragma once

#include "backend/scratch.h"

namespace dsv4rt::cuda {

using dsv4rt::Scratch;

}  // namespace dsv4rt::cuda
