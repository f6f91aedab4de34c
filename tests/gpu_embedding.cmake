# The CUDA backend's embedding: test_gpu_embedding.c.
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_embedding PARTS rows LIBS sluice_kernels_reference)
endif()
