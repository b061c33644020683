# GAPLESS_HAS_CUDA says whether device/cuda and kernels/cuda are built. Where they are not,
# device/no_cuda offers the same symbols and answers "unavailable", so no other file needs an #ifdef.
#
# GAPLESS_CUDA_ARCHITECTURES says for which GPUs:
#   native  those of this machine
#   all     8.0 (A100), 8.6 (RTX 30, A10), 8.9 (RTX 40, L4, L40S), 9.0 (H100, H200), 10.0 and 10.3 (B200, B300),
#           12.0 (RTX 50; 12.1 runs its code), and PTX for others and for what comes later
#   80;90a  a list, as CMAKE_CUDA_ARCHITECTURES: -real is machine code alone, -virtual PTX alone
# Unsaid, it is native where there is a GPU, else all: what is built without one runs somewhere else.
# PTX of 8.0 and 9.0 also lets a newer GPU run these paths (GAPLESS_CUDA_PATH, docs/gpus.md).
# GAPLESS_CUDA_PTX_COMPILED_FOR, a list such as 90: nvcc compiles that PTX for these GPUs, so that a test of the paths need not wait
# minutes for the driver to do it.
set(GAPLESS_CUDA_PTX_COMPILED_FOR "" CACHE STRING "GPUs for which the PTX of 8.0 and 9.0 is compiled ahead: a list such as 90")
set(GAPLESS_CUDA_ARCHITECTURES "" CACHE STRING "GPUs to build for: native, all, or a list such as 80;90a")
set(GAPLESS_ALL_CUDA_ARCHITECTURES 80 86-real 89-real 90a-real 90-virtual 100-real 103-real 120-real)

# What nvidia-smi says of this machine's GPUs, as architectures; empty where there are none.
function(gapless_native_architectures out)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE result OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(architectures "")
  if(result EQUAL 0 AND capabilities MATCHES "^[0-9.\n]+$")
    string(REPLACE "." "" capabilities "${capabilities}")
    string(REPLACE "\n" ";" capabilities "${capabilities}")
    foreach(capability IN LISTS capabilities)
      # Its own instructions (wgmma, registers that change hands) need the "a" target.
      string(REGEX REPLACE "^90$" "90a" capability "${capability}")
      list(APPEND architectures ${capability}-real)
    endforeach()
    list(REMOVE_DUPLICATES architectures)
  endif()
  set(${out} "${architectures}" PARENT_SCOPE)
endfunction()

# The path of src/kernels/cuda/cuda_path.h that is compiled for an architecture.
function(gapless_path_of architecture out)
  string(REGEX MATCH "^[0-9]+" number "${architecture}")
  if(architecture MATCHES "^90a")
    set(path 90a)
  elseif(number STREQUAL "" OR number LESS 80)
    message(FATAL_ERROR "GAPLESS_CUDA_ARCHITECTURES: '${architecture}' is none that gapless runs on (80 and later)")
  elseif(number GREATER_EQUAL 90)
    set(path 90)
  elseif(number EQUAL 89)
    set(path 89)
  else()
    set(path 80)
  endif()
  set(${out} ${path} PARENT_SCOPE)
endfunction()

# Sets CMAKE_CUDA_ARCHITECTURES, GAPLESS_CUDA_PATHS and, of each path, GAPLESS_CUDA_ARCHITECTURES_<path>.
macro(gapless_choose_architectures)
  set(chosen "${GAPLESS_CUDA_ARCHITECTURES}")
  if(chosen STREQUAL "" AND CMAKE_CUDA_ARCHITECTURES)
    set(chosen "${CMAKE_CUDA_ARCHITECTURES}")
  endif()
  if(chosen STREQUAL "" OR chosen STREQUAL "native")
    gapless_native_architectures(native)
    if(native STREQUAL "" AND chosen STREQUAL "native")
      message(FATAL_ERROR "GAPLESS_CUDA_ARCHITECTURES=native, but nvidia-smi finds no GPU here")
    endif()
    set(chosen "${native}")
  endif()
  if(chosen STREQUAL "" OR chosen STREQUAL "all")
    set(chosen ${GAPLESS_ALL_CUDA_ARCHITECTURES})
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${chosen}")
  set(GAPLESS_CUDA_PATHS "")
  foreach(architecture IN LISTS chosen)
    gapless_path_of("${architecture}" path)
    list(APPEND GAPLESS_CUDA_PATHS ${path})
    list(APPEND GAPLESS_CUDA_ARCHITECTURES_${path} "${architecture}")
  endforeach()
  list(REMOVE_DUPLICATES GAPLESS_CUDA_PATHS)
endmacro()

set(GAPLESS_HAS_CUDA OFF)
if(NOT GAPLESS_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  # Asks for the compiler with its own default.
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    gapless_choose_architectures()
    enable_language(CUDA)
    find_package(CUDAToolkit 12.8 QUIET)
    if(CUDAToolkit_FOUND)
      # CMake 3.25.1 (Debian 12) does not know yet that nvcc 12 and newer speak C++20.
      if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      endif()
      set(GAPLESS_HAS_CUDA ON)
      set(CMAKE_CUDA_STANDARD 20)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    endif()
  endif()
  if(GAPLESS_CUDA STREQUAL "ON" AND NOT GAPLESS_HAS_CUDA)
    message(FATAL_ERROR "GAPLESS_CUDA=ON, but no CUDA toolkit (12.8 or newer) was found")
  endif()
endif()
message(STATUS "gapless: CUDA backend ${GAPLESS_HAS_CUDA}")
if(GAPLESS_HAS_CUDA)
  message(STATUS "gapless: CUDA architectures ${CMAKE_CUDA_ARCHITECTURES}, paths ${GAPLESS_CUDA_PATHS}")
endif()
