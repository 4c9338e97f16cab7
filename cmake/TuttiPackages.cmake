# Debian packages, by `cmake --build ... --target package`: one for each component that this build installs. docs/install.md lists them.
set(abi "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
set(same_version "libtutti${abi} (= ${PROJECT_VERSION})")
get_cmake_property(installed COMPONENTS)
set(CPACK_PACKAGE_CONTACT "Tutti maintainers <maintainers@tutti.example>" CACHE STRING "The maintainer of the Debian packages")

find_program(TUTTI_GZIP gzip REQUIRED)
mark_as_advanced(TUTTI_GZIP)
set(folder "${PROJECT_BINARY_DIR}/debian")
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(cmake/debian/changelog.in "${folder}/changelog" @ONLY)
configure_file(cmake/debian/shlibs.in "${folder}/shlibs" @ONLY)
execute_process(COMMAND "${TUTTI_GZIP}" -9nf "${folder}/changelog" COMMAND_ERROR_IS_FATAL ANY)

# The text begins with the synopsis.
function(tutti_package component name section depends text)
  if(NOT tutti_${component} IN_LIST installed)
    return()
  endif()
  install(FILES "${folder}/changelog.gz" cmake/debian/copyright NOTICE DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${name}"
    COMPONENT tutti_${component} EXCLUDE_FROM_ALL)
  string(TOUPPER TUTTI_${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${text}" PARENT_SCOPE)
  # Modules of all versions lie in one folder, so one package replaces that of another version.
  if(name MATCHES "^libtutti${abi}-")
    foreach(field PROVIDES CONFLICTS REPLACES)
      set(CPACK_DEBIAN_${upper}_PACKAGE_${field} libtutti-${component} PARENT_SCOPE)
    endforeach()
  endif()
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} tutti_${component} PARENT_SCOPE)
endfunction()

set(about "Tutti makes the replicas of a training step act as one: collectives between
threads, processes, hosts and GPUs, strategies and input pipelines for
synchronous data-parallel training.
")
tutti_package(library libtutti${abi} libs "" "synchronous data-parallel training for C++
${about}
This package holds the library. What needs a heavy library is in packages of
its own, which are loaded when needed.")
tutti_package(development libtutti-dev libdevel "${same_version}" "synchronous data-parallel training for C++ (development files)
${about}
This package holds the headers and the files for CMake and pkg-config.")
tutti_package(command tutti science "${same_version}" "synchronous data-parallel training for C++ (command)
${about}
This package holds the command tutti, which starts jobs of several processes,
measures and simulates collectives, and shows what a machine has.")
tutti_package(cluster libtutti${abi}-cluster libs "${same_version}" "synchronous data-parallel training for C++ (several processes)
${about}
This package holds the modules for jobs of several processes: coordination by
gRPC, and messages over TCP.")
tutti_package(ucx libtutti${abi}-ucx libs "${same_version}" "synchronous data-parallel training for C++ (UCX)
${about}
This package holds the module for messages between hosts with RDMA, by UCX.")
tutti_package(openmpi libtutti${abi}-openmpi libs "${same_version}" "synchronous data-parallel training for C++ (Open MPI)
${about}
This package holds the module for jobs started by the mpirun of Open MPI.")
tutti_package(mpich libtutti${abi}-mpich libs "${same_version}" "synchronous data-parallel training for C++ (MPICH)
${about}
This package holds the module for jobs started by the mpirun of MPICH.")
tutti_package(cuda libtutti${abi}-cuda contrib/libs "${same_version}, libc6" "synchronous data-parallel training for C++ (GPUs)
${about}
This package holds the modules for GPUs of NVIDIA. They need the driver, and
NCCL (libnccl.so.2) for collectives between GPUs; either may be absent.")
set(CPACK_DEBIAN_TUTTI_COMMAND_PACKAGE_RECOMMENDS "libtutti${abi}-cluster (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_TUTTI_LIBRARY_PACKAGE_SUGGESTS "libtutti${abi}-cluster, tutti")
# Beside NCCL its modules need only what the library needs. NCCL may be absent, and is often in no package.
set(CPACK_DEBIAN_TUTTI_CUDA_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_TUTTI_CUDA_PACKAGE_SUGGESTS libnccl2)
set(CPACK_DEBIAN_TUTTI_LIBRARY_PACKAGE_CONTROL_EXTRA "${folder}/shlibs;${PROJECT_SOURCE_DIR}/cmake/debian/triggers")

set(CPACK_GENERATOR DEB)
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/cmake/debian/needs.cmake")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # else every description would begin with it
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_OUTPUT_FILE_PREFIX "${PROJECT_BINARY_DIR}/packages")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SOURCE tutti)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
