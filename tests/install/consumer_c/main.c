/* Compiles the installed C interface as C11 and links libdsv4rt without a C++ compiler. */
#include "dsv4rt/c_api.h"

int main(void) {
  dsv4rt_status status = (dsv4rt_status)0;
  return (int)status;
}
