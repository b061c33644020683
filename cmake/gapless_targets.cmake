# gapless_library(NAME [COMPUTES] SOURCES ... DEPS ... [PRIVATE_DEPS ...])
#   A static library of one folder of src/, target gapless_NAME. Includes are written from src/
#   ("base/status.h"). Its include path is its own folder and those of DEPS, nothing else: an
#   undeclared include does not build. PRIVATE_DEPS are for the sources alone.
#   COMPUTES: it is optimised under AddressSanitizer, too, and fully in scripts/test. The others take longer to compile than
#   their tests to run.
# gapless_interface_library(NAME DEPS ...)
#   The same for a folder of headers.
# gapless_test(NAME [COMPUTES] SOURCES ... DEPS ...)
#   One GoogleTest binary; unit tests sit beside the code they test. COMPUTES: its own code is optimised a little.
set(GAPLESS_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast
                     -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND GAPLESS_WARNINGS -Wthread-safety)  # base/mutex.h
  # std::stable_sort of libstdc++ uses what the standard has deprecated.
  list(APPEND GAPLESS_WARNINGS -Wno-deprecated-declarations)
endif()
if(GAPLESS_WERROR)
  list(APPEND GAPLESS_WARNINGS -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Found by data flow after inlining, and wrong about the standard library in each version anew.
    list(APPEND GAPLESS_WARNINGS -Wno-error=array-bounds -Wno-error=stringop-overflow
                                 -Wno-error=maybe-uninitialized -Wno-error=restrict
                                 -Wno-error=mismatched-new-delete)
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
endfunction()

# For what computes little.
function(gapless_may_optimise_less target)
  if(GAPLESS_SANITIZE MATCHES "address")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  elseif(GAPLESS_OPTIMISE_LESS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# Sets `out` to a directory through which this folder of src/ can be included, and no other:
# BUILD/rooms/NAME holds one link, NAME -> src/NAME.
function(gapless_include_root out)
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
  string(REGEX REPLACE "/.*" "" room "${path}")
  set(root ${PROJECT_BINARY_DIR}/rooms/${room})
  if(NOT EXISTS ${root}/${room})
    file(MAKE_DIRECTORY ${root})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${room} ${root}/${room} SYMBOLIC)
  endif()
  set(${out} ${root} PARENT_SCOPE)
endfunction()

function(gapless_library name)
  cmake_parse_arguments(ARG "COMPUTES" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(gapless_${name} STATIC ${ARG_SOURCES})
  gapless_compile_options(gapless_${name})
  if(NOT ARG_COMPUTES)
    gapless_may_optimise_less(gapless_${name})
  endif()
  gapless_include_root(include_root)
  target_include_directories(gapless_${name} PUBLIC ${include_root})
  target_link_libraries(gapless_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

function(gapless_interface_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_library(gapless_${name} INTERFACE)
  gapless_include_root(include_root)
  target_include_directories(gapless_${name} INTERFACE ${include_root})
  target_link_libraries(gapless_${name} INTERFACE ${ARG_DEPS})
endfunction()

# What is tested is optimised. Optimising the tests themselves is a quarter to a half of their compile time. Under
# ThreadSanitizer they are optimised: threads' tests have deadlines, and the linker may take a template's code from a test.
function(gapless_test_options target level)
  if(NOT GAPLESS_SANITIZE MATCHES "thread")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
  endif()
endfunction()

function(gapless_test name)
  if(NOT GAPLESS_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "COMPUTES" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  gapless_compile_options(${name})
  set(level -O0)
  if(ARG_COMPUTES)
    set(level -O1)
  endif()
  gapless_test_options(${name} ${level})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${GAPLESS_UNITY} UNITY_BUILD_BATCH_SIZE 4)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE GAPLESS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(GAPLESS_UNITY)
    # Reading GoogleTest's headers takes three seconds for each file. What is precompiled is compiled as the rest.
    set(headers gapless_test_headers${level})
    if(NOT TARGET ${headers})
      add_executable(${headers} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/test_headers.cpp)
      gapless_compile_options(${headers})
      gapless_test_options(${headers} ${level})
      target_link_libraries(${headers} PRIVATE GTest::gtest GTest::gmock)
      target_precompile_headers(${headers} PRIVATE <gtest/gtest.h> <gmock/gmock.h>)
    endif()
    target_precompile_headers(${name} REUSE_FROM ${headers})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600)
endfunction()
