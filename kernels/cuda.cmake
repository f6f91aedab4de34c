# The CUDA backend: compiled by nvcc for GPUs (kernels_cuda, where SLUICE_CUDA_FOUND; else a stub that
# says that there is none) and, for tests on machines without a GPU, by the host compiler against the
# simulated GPU (tests/cuda/simulated_gpu.cmake), which takes the global property SLUICE_KERNELS_CUDA_SOURCES
# and has its own stand-in for library.c.
set(kernels_cuda_names
    context.c backend_ops.c
    attention/attention_ops.c attention/attention_own.c attention/attention_cached.cu attention/attention_compare.cu
    attention/attention_forward.cu attention/attention_fp32.cu attention/attention_key_grad.cu
    attention/attention_query_grad.cu
    matmul/matmul_choice.c matmul/matmul_cublas.c matmul/matmul_ops.c matmul/matmul_plain.cu
    rows/rows_experts_ops.c rows/rows_ops.c rows/rows_sparse.c rows/rows_activation.cu rows/rows_embedding.cu
    rows/rows_experts.cu rows/rows_head_norm.cu rows/rows_heads.cu rows/rows_loss.cu rows/rows_norm.cu rows/rows_point.cu
    rows/rows_router.cu rows/rows_stored.cu
    update/update.c update/update_adam.cu update/update_adam_state.cu update/update_sums.cu)
set(kernels_cudnn_names attention/attention_cudnn.c attention/cudnn_graph.c attention/cudnn_library.c)
list(TRANSFORM kernels_cuda_names PREPEND ${CMAKE_CURRENT_LIST_DIR}/cuda/
     OUTPUT_VARIABLE kernels_cuda_sources)
list(TRANSFORM kernels_cudnn_names PREPEND ${CMAKE_CURRENT_LIST_DIR}/cuda/
     OUTPUT_VARIABLE kernels_cudnn_sources)
set_property(GLOBAL PROPERTY SLUICE_KERNELS_CUDA_SOURCES ${kernels_cuda_sources})

if(SLUICE_CUDA_FOUND)
    add_library(kernels_cuda OBJECT ${kernels_cuda_sources} cuda/library.c)
    target_link_libraries(kernels_cuda PUBLIC sluice_options sluice_base CUDA::cudart_static)

    # cuDNN is used through its header alone, the library is loaded at run time. The header must be of
    # 9.8 or later: the first that describes devices.
    find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    set(has_cudnn "")
    if(CUDNN_INCLUDE_DIR)
        file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_graph.h has_cudnn
             REGEX CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)
    endif()
    if(has_cudnn)
        target_sources(kernels_cuda PRIVATE ${kernels_cudnn_sources})
        target_include_directories(kernels_cuda PRIVATE ${CUDNN_INCLUDE_DIR})
        set_property(GLOBAL PROPERTY SLUICE_KERNELS_CUDNN_SOURCES ${kernels_cudnn_sources})
        message(STATUS "cuDNN's header: ${CUDNN_INCLUDE_DIR}")
    else()
        target_sources(kernels_cuda PRIVATE cuda/attention/attention_cudnn_absent.c)
        message(STATUS "cuDNN's header of 9.8 or later: not found; attention by Sluice's own kernels")
    endif()
    set(KERNELS_GPU kernels_cuda CACHE INTERNAL "the object library of the GPU backend")
else()
    add_library(kernels_cuda_absent OBJECT cuda_absent.c)
    target_link_libraries(kernels_cuda_absent PUBLIC sluice_options sluice_base)
    set(KERNELS_GPU kernels_cuda_absent CACHE INTERNAL "the object library of the GPU backend")
endif()
