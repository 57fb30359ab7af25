/* Preloaded into a program, makes its n-th system call of a kind fail: DSV4RT_FAULT=KIND:N. With a file name in
 * DSV4RT_FAULT_COUNTS it writes how often each kind was called, "KIND COUNT" a line, when the program ends.
 *
 * Kinds: open, stat, read, write, close, rename, fsync, mmap, mkdir (the call fails), short (a write takes one byte),
 * shrink (before a read from a regular file, that file loses its second half), kill, term (the signal comes at a write,
 * a rename or an fsync). Calls that the C library makes itself do not come through here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>

enum Kind {
  kOpen,
  kStat,
  kRead,
  kWrite,
  kShort,
  kClose,
  kRename,
  kFsync,
  kMmap,
  kMkdir,
  kShrink,
  kKill,
  kTerm,
  kKinds
};
static const char* const kNames[kKinds] = {"open",  "stat", "read",  "write",  "short", "close", "rename",
                                           "fsync", "mmap", "mkdir", "shrink", "kill",  "term"};
static atomic_long counts[kKinds];
static int chosen = -1;
static long chosen_number;

__attribute__((constructor)) static void read_fault(void) {
  const char* fault = getenv("DSV4RT_FAULT");
  const char* colon = fault == NULL ? NULL : strchr(fault, ':');
  for (int kind = 0; colon != NULL && kind < kKinds; ++kind) {
    if (strlen(kNames[kind]) == (size_t)(colon - fault) && strncmp(kNames[kind], fault, (size_t)(colon - fault)) == 0) {
      chosen = kind;
      chosen_number = atol(colon + 1);
    }
  }
}

__attribute__((destructor)) static void write_counts(void) {
  const char* path = getenv("DSV4RT_FAULT_COUNTS");
  FILE* file = path == NULL ? NULL : fopen(path, "w");
  if (file == NULL) return;
  for (int kind = 0; kind < kKinds; ++kind) fprintf(file, "%s %ld\n", kNames[kind], atomic_load(&counts[kind]));
  fclose(file);
}

static int fails(enum Kind kind) {
  const long number = atomic_fetch_add(&counts[kind], 1) + 1;
  return (int)kind == chosen && number == chosen_number;
}

/* Room and the device run out in turn. */
static int write_error(void) {
  return chosen_number % 2 == 0 ? EIO : ENOSPC;
}

static void signals(void) {
  if (fails(kKill)) raise(SIGKILL);
  if (fails(kTerm)) raise(SIGTERM);
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN_MODE(flags, last)                    \
  mode_t mode = 0;                                \
  if (((flags) & (O_CREAT | __O_TMPFILE)) != 0) { \
    va_list list;                                 \
    va_start(list, last);                         \
    mode = (mode_t)va_arg(list, int);             \
    va_end(list);                                 \
  }

int open(const char* path, int flags, ...) {
  OPEN_MODE(flags, flags)
  REAL(open);
  if (fails(kOpen)) {
    errno = chosen_number % 2 == 0 ? EMFILE : EIO;
    return -1;
  }
  return real(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  OPEN_MODE(flags, flags)
  return open(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  OPEN_MODE(flags, flags)
  REAL(openat);
  if (fails(kOpen)) {
    errno = chosen_number % 2 == 0 ? EMFILE : EIO;
    return -1;
  }
  return real(folder, path, flags, mode);
}

int fstat(int fd, struct stat* info) {
  REAL(fstat);
  if (fails(kStat)) {
    errno = EIO;
    return -1;
  }
  return real(fd, info);
}

int lstat(const char* path, struct stat* info) {
  REAL(lstat);
  if (fails(kStat)) {
    errno = EIO;
    return -1;
  }
  return real(path, info);
}

ssize_t read(int fd, void* to, size_t bytes) {
  REAL(read);
  if (fails(kRead)) {
    errno = EIO;
    return -1;
  }
  return real(fd, to, bytes);
}

ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  REAL(pread);
  if (fails(kRead)) {
    errno = EIO;
    return -1;
  }
  struct stat info;
  if (fails(kShrink) && fstat(fd, &info) == 0) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (truncate(name, info.st_size / 2) != 0) abort();
  }
  return real(fd, to, bytes, offset);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  REAL(write);
  signals();
  if (fails(kWrite)) {
    errno = write_error();
    return -1;
  }
  return real(fd, from, fails(kShort) && bytes > 1 ? 1 : bytes);
}

int close(int fd) {
  REAL(close);
  const int result = real(fd);
  if (!fails(kClose)) return result;
  errno = write_error();
  return -1;
}

int renameat(int old_folder, const char* old_name, int new_folder, const char* new_name) {
  REAL(renameat);
  signals();
  if (fails(kRename)) {
    errno = write_error();
    return -1;
  }
  return real(old_folder, old_name, new_folder, new_name);
}

int renameat2(int old_folder, const char* old_name, int new_folder, const char* new_name, unsigned flags) {
  REAL(renameat2);
  signals();
  if (fails(kRename)) {
    errno = write_error();
    return -1;
  }
  return real(old_folder, old_name, new_folder, new_name, flags);
}

int fsync(int fd) {
  REAL(fsync);
  signals();
  if (fails(kFsync)) {
    errno = write_error();
    return -1;
  }
  return real(fd);
}

void* mmap(void* address, size_t bytes, int rights, int flags, int fd, off_t offset) {
  REAL(mmap);
  if (fails(kMmap)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return real(address, bytes, rights, flags, fd, offset);
}

int mprotect(void* address, size_t bytes, int rights) {
  REAL(mprotect);
  if (fails(kMmap)) {
    errno = ENOMEM;
    return -1;
  }
  return real(address, bytes, rights);
}

int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  if (fails(kMkdir)) {
    errno = ENOSPC;
    return -1;
  }
  return real(path, mode);
}
