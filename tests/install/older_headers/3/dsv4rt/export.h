// Symbol visibility of the shared library. Everything else in it is hidden.
#pragma once

#if defined(__GNUC__)
#define DSV4RT_EXPORT __attribute__((visibility("default")))
#else
#define DSV4RT_EXPORT
#endif
