# Matrix products of the CUDA backend; the loading of libraries needs no GPU and no CUDA.
sluice_gpu_test(test_gpu_matmul PARTS matmul TIMEOUT 300)
sluice_gpu_test(test_gpu_matmul_library PARTS matmul SIMULATED_ONLY)
add_library(kernels_cuda_library OBJECT ${PROJECT_SOURCE_DIR}/kernels/cuda/library.c)
target_link_libraries(kernels_cuda_library PUBLIC sluice_options sluice_base ${CMAKE_DL_LIBS})
sluice_test(test_kernels_library LIBS kernels_cuda_library LABELS cpu)
