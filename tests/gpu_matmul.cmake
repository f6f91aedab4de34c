# Matrix products of the CUDA backend; the loading of libraries needs no GPU and no CUDA.
sluice_gpu_test(test_gpu_matmul PARTS matmul TIMEOUT 300)
sluice_gpu_test(test_gpu_matmul_library PARTS matmul SIMULATED_ONLY)
add_library(kernels_cuda_library OBJECT ${PROJECT_SOURCE_DIR}/kernels/cuda/library.c)
target_link_libraries(kernels_cuda_library PUBLIC sluice_options sluice_base ${CMAKE_DL_LIBS})
sluice_test(test_kernels_library LIBS kernels_cuda_library LABELS cpu)
# The program starts where there is no CUDA: it needs none of its libraries.
if(TARGET sluice)
    add_test(NAME cuda_is_not_linked COMMAND sh -c
             "ldd $1 >/dev/null && ! ldd $1 | grep -E 'libcu|libnv|libnccl'" sh $<TARGET_FILE:sluice>)
    set_tests_properties(cuda_is_not_linked PROPERTIES LABELS cpu TIMEOUT 60)
endif()
