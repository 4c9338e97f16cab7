# What CPack makes Debian packages with. Without dpkg-shlibdeps it would leave out what they depend on.
foreach(program file dpkg-shlibdeps)
  find_program(found_${program} ${program})
  if(NOT found_${program})
    message(FATAL_ERROR "package: ${program} is missing; apt install dpkg-dev file")
  endif()
endforeach()
