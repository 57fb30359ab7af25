/* Preloaded into a program, limits the memory that it holds at a time from the start of main() on: an allocation that
 * would take it beyond DSV4RT_HEAP_BUDGET bytes fails. With a file name in DSV4RT_HEAP_PEAK it writes the most that the
 * program held, when it ends. Sizes are those that malloc_usable_size() tells. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* block);

static atomic_llong held;
static atomic_llong peak;
static long long budget = INT64_MAX;
static atomic_int armed;

static int fits(size_t bytes) {
  return !atomic_load(&armed) || (bytes < (size_t)budget && atomic_load(&held) + (long long)bytes <= budget);
}

static void* took(void* block) {
  if (block == NULL) return NULL;
  const long long bytes = (long long)malloc_usable_size(block);
  const long long now = atomic_fetch_add(&held, bytes) + bytes;
  long long most = atomic_load(&peak);
  while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) {
  }
  return block;
}

static void* refuse(void) {
  errno = ENOMEM;
  return NULL;
}

void* malloc(size_t bytes) {
  return fits(bytes) ? took(__libc_malloc(bytes)) : refuse();
}
void* calloc(size_t count, size_t bytes) {
  size_t all;
  if (__builtin_mul_overflow(count, bytes, &all) || !fits(all)) return refuse();
  return took(__libc_calloc(count, bytes));
}
void* realloc(void* old, size_t bytes) {
  const size_t before = old == NULL ? 0 : malloc_usable_size(old);
  if (bytes > before && !fits(bytes - before)) return refuse();
  void* const block = __libc_realloc(old, bytes);
  if (block == NULL && bytes > 0) return NULL;
  atomic_fetch_sub(&held, (long long)before);
  return took(block);
}
void* memalign(size_t alignment, size_t bytes) {
  return fits(bytes) ? took(__libc_memalign(alignment, bytes)) : refuse();
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return memalign(alignment, bytes);
}
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  void* const taken = memalign(alignment, bytes);
  if (taken == NULL) return ENOMEM;
  *block = taken;
  return 0;
}
void free(void* block) {
  if (block == NULL) return;
  atomic_fetch_sub(&held, (long long)malloc_usable_size(block));
  __libc_free(block);
}

static int (*real_main)(int, char**, char**);
static int limited_main(int argc, char** argv, char** environment) {
  const char* text = getenv("DSV4RT_HEAP_BUDGET");
  if (text != NULL) budget = atoll(text);
  atomic_store(&peak, atomic_load(&held));
  atomic_store(&armed, 1);
  const int code = real_main(argc, argv, environment);
  atomic_store(&armed, 0);
  const char* path = getenv("DSV4RT_HEAP_PEAK");
  FILE* file = path == NULL ? NULL : fopen(path, "w");
  if (file != NULL) {
    fprintf(file, "%lld\n", atomic_load(&peak));
    fclose(file);
  }
  return code;
}

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void* stack_end) {
  int (*start)(int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void), void (*)(void), void*) =
      (int (*)(int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void), void (*)(void), void*))dlsym(
          RTLD_NEXT, "__libc_start_main");
  real_main = main;
  return start(limited_main, argc, argv, init, fini, rtld_fini, stack_end);
}
