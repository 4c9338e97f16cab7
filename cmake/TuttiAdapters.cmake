# The targets tutti::torch and tutti::eigen: Tutti with the library that tutti/torch.h or tutti/eigen.h adapts it to; Tutti itself does
# without. TUTTI_TORCH and TUTTI_EIGEN are AUTO (if it is there), ON (an error without it) or OFF, which is the default of a project that
# adds Tutti to its own; Torch_DIR names a LibTorch that is not Debian's.
set(default OFF)
if(TUTTI_TESTS OR TUTTI_BENCH OR TUTTI_EXAMPLES)
  set(default AUTO)
endif()

# A function, so that what these packages set stays within.
function(tutti_adapter name option library package)
  get_property(before DIRECTORY PROPERTY IMPORTED_TARGETS)
  include("${PROJECT_SOURCE_DIR}/cmake/tutti-${name}.cmake")
  if(TARGET tutti::${name})
    # For all folders, and for a project that adds Tutti to its own.
    get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
    list(REMOVE_ITEM targets ${before})
    set_target_properties(${targets} PROPERTIES IMPORTED_GLOBAL ON)
  elseif(${option} STREQUAL AUTO)
    message(STATUS "What uses ${library} is not built: ${package} was not found")
  else()
    message(FATAL_ERROR "${library} was not found: install ${package}, or set ${option}=OFF")
  endif()
endfunction()

set(TUTTI_TORCH ${default} CACHE STRING "Offer tutti::torch, and build what uses it: AUTO (if LibTorch is there), ON, OFF")
set(TUTTI_EIGEN ${default} CACHE STRING "Offer tutti::eigen, and build what uses it: AUTO (if Eigen is there), ON, OFF")
set_property(CACHE TUTTI_TORCH TUTTI_EIGEN PROPERTY STRINGS AUTO ON OFF)
if(TUTTI_TORCH)
  tutti_adapter(torch TUTTI_TORCH LibTorch libtorch-dev)
endif()
if(TUTTI_EIGEN)
  tutti_adapter(eigen TUTTI_EIGEN Eigen libeigen3-dev)
endif()
