# cmake -P: the GPU architectures of a CUDA build, by default and with a user's list.
cmake_minimum_required(VERSION 3.25)
set(ISTHMUS_CUDA off)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/Cuda.cmake)

function(expect what value expected)
  if(NOT "${value}" STREQUAL "${expected}")
    message(SEND_ERROR "${what}: ${value}; expected ${expected}")
  endif()
endfunction()

unset(ENV{CUDAARCHS})
isthmus_choose_architectures(chosen)
expect("the default" "${chosen}" "80-real;90;100-real;120-real")
isthmus_describe_architectures(text "${chosen}")
expect("the default, described" "${text}" "sm_80 sm_90 sm_100 sm_120 PTX of 9.0")

set(ENV{CUDAARCHS} "86;89-virtual")
isthmus_choose_architectures(chosen)
expect("with CUDAARCHS" "${chosen}" "86;89-virtual")

set(CMAKE_CUDA_ARCHITECTURES 90a-real)
isthmus_choose_architectures(chosen)
expect("with -DCMAKE_CUDA_ARCHITECTURES, which wins over CUDAARCHS" "${chosen}" "90a-real")
isthmus_describe_architectures(text "${chosen}")
expect("that list, described" "${text}" "sm_90a")
