# gapless_library(NAME SOURCES ... DEPS ... [PRIVATE_DEPS ...])
#   One static library per folder, target gapless_NAME. Includes are written from src/
#   ("base/status.h"), and only the folders named in DEPS are linked.
# gapless_test(NAME SOURCES ... DEPS ...)
#   One GoogleTest binary; unit tests sit beside the code they test.
set(GAPLESS_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast
                     -Wno-missing-field-initializers)
if(GAPLESS_WERROR)
  list(APPEND GAPLESS_WARNINGS -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Found by data flow after inlining, and wrong about the standard library in each version anew.
    list(APPEND GAPLESS_WARNINGS -Wno-error=array-bounds -Wno-error=stringop-overflow
                                 -Wno-error=maybe-uninitialized -Wno-error=restrict)
    if(GAPLESS_SANITIZE MATCHES "thread")
      # ThreadSanitizer does not see the fences by which Asio's strands hand over; -Wtsan says so for
      # each. They stand beside atomic operations that it does see.
      list(APPEND GAPLESS_WARNINGS -Wno-tsan)
    endif()
  endif()
endif()

function(gapless_compile_options target)
  foreach(flag IN LISTS GAPLESS_WARNINGS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/src)
endfunction()

function(gapless_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(gapless_${name} STATIC ${ARG_SOURCES})
  gapless_compile_options(gapless_${name})
  target_link_libraries(gapless_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

function(gapless_test name)
  if(NOT GAPLESS_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  gapless_compile_options(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE GAPLESS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)
endfunction()
