# The target tutti::eigen, for tutti/eigen.h, if Eigen is there.
find_package(Eigen3 QUIET NO_MODULE)
if(TARGET Eigen3::Eigen AND NOT TARGET tutti::eigen)
  add_library(tutti::eigen INTERFACE IMPORTED)
  target_link_libraries(tutti::eigen INTERFACE tutti::tutti Eigen3::Eigen)
endif()
