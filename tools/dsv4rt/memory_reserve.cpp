#include "memory_reserve.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace dsv4rt::cli {
namespace {

// Reports and lines are built in less; a tree is taken apart with a pointer for each of its values.
constexpr std::size_t kFirstPartBytes = std::size_t{1} << 20;
constexpr std::size_t kSecondPartBytes = std::size_t{2} << 20;

std::atomic<void*> first_part = nullptr;
std::atomic<void*> second_part = nullptr;

void give_back() {
  if (void* const part = first_part.exchange(nullptr)) {
    std::free(part);
    return;  // the allocation is tried again
  }
  std::free(second_part.exchange(nullptr));
  throw std::bad_alloc();
}

}  // namespace

void keep_memory_in_reserve() {
  first_part = std::malloc(kFirstPartBytes);
  second_part = std::malloc(kSecondPartBytes);
  if (first_part == nullptr || second_part == nullptr) throw std::bad_alloc();
  std::set_new_handler(give_back);
}

}  // namespace dsv4rt::cli
