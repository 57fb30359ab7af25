# dsv4rt_check_cuda_architectures(<list> <variable>)
# Sets the variable to why a list of architectures is refused, or to the empty string. Hopper's kernels use instructions
# that only code for 90a has. Code for 90 would be chosen on an H100 or H200 too, with those kernels empty; what is left
# for such a device, the portable kernels, is a build that nobody has run.
function(dsv4rt_check_cuda_architectures architectures reason)
  set(${reason} "" PARENT_SCOPE)
  if(architectures MATCHES "(^|;)90(-[a-z]+)?(;|$)" AND NOT architectures MATCHES "(^|;)90a(-[a-z]+)?(;|$)")
    set(${reason} "DSV4RT_CUDA_ARCHITECTURES is '${architectures}': code for 90 without code for 90a is refused, since \
H100 and H200 need 90a. Accepted: 90a-real beside it or in its place, or no 90 at all." PARENT_SCOPE)
  endif()
endfunction()
