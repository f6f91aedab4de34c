# The CUDA backend's embedding: test_gpu_embedding.c and, with over 2^31 elements, _large.c.
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_embedding PARTS rows LIBS sluice_kernels_reference)
endif()
sluice_gpu_test(test_gpu_embedding_large PARTS rows)
