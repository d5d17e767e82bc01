# libtorch from the Python wheel. find_package(Torch) requires a CUDA toolkit even for CPU use, so the imported
# target is made here from the three libraries that are needed.
file(GLOB ISTHMUS_TORCH_DIR "${ISTHMUS_PYTHON_ENV}/lib/python3*/site-packages/torch")
if(NOT ISTHMUS_TORCH_DIR)
  message(FATAL_ERROR "no torch in ${ISTHMUS_PYTHON_ENV}; run scripts/setup.sh first, or pass -DISTHMUS_PYTHON_ENV=DIR")
endif()
list(GET ISTHMUS_TORCH_DIR 0 ISTHMUS_TORCH_DIR)
file(READ "${ISTHMUS_TORCH_DIR}/version.py" _torch_version)
string(REGEX MATCH "__version__ = '([^']+)'" _ "${_torch_version}")
set(ISTHMUS_TORCH_VERSION ${CMAKE_MATCH_1})

add_library(isthmus_torch INTERFACE)
target_include_directories(isthmus_torch SYSTEM INTERFACE
  ${ISTHMUS_TORCH_DIR}/include ${ISTHMUS_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(isthmus_torch INTERFACE USE_C10D_GLOO)
# g++ 13 and 14 wrongly report that the std::vector<bool> in torch::autograd::Function::apply is copied beyond its
# end.
target_compile_options(isthmus_torch INTERFACE
  "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-array-bounds;-Wno-stringop-overflow>")
target_link_directories(isthmus_torch INTERFACE ${ISTHMUS_TORCH_DIR}/lib)
# Tests find libtorch by its path. The trainer's library, which is installed, is loaded after libtorch.
target_link_options(isthmus_torch INTERFACE "LINKER:--allow-shlib-undefined"
  $<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,MODULE_LIBRARY>>:LINKER:-rpath,${ISTHMUS_TORCH_DIR}/lib>)
if(ISTHMUS_WITH_CUDA)
  # libtorch registers its CUDA backend when it is loaded. By default the linker would drop it, since no symbol of
  # it is used. The trainer's library does not name these two: `isthmus` loads them where they can be used.
  set(_cuda_libraries "-Wl,--no-as-needed" torch_cuda c10_cuda "-Wl,--as-needed")
  target_link_libraries(isthmus_torch INTERFACE
    "$<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,MODULE_LIBRARY>>:${_cuda_libraries}>" torch_cpu c10 CUDA::cudart)
  target_include_directories(isthmus_torch SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  # The ranks of a GPU replica communicate through NCCL. c10d includes NCCL's header, which comes with libtorch, as
  # does the library.
  get_filename_component(_site_packages "${ISTHMUS_TORCH_DIR}" DIRECTORY)
  find_path(ISTHMUS_NCCL_INCLUDE nccl.h HINTS "${_site_packages}/nvidia/nccl/include" REQUIRED)
  target_include_directories(isthmus_torch SYSTEM INTERFACE ${ISTHMUS_NCCL_INCLUDE})
  target_compile_definitions(isthmus_torch INTERFACE USE_C10D_NCCL)
else()
  target_link_libraries(isthmus_torch INTERFACE torch_cpu c10)
endif()
