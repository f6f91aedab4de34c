# The CUDA backend's files, as two lists: they are compiled by nvcc for GPUs (kernels_cuda, where
# SLUICE_CUDA is on) and, for tests on machines without one, by the host compiler against the simulated
# GPU (tests/simulated_gpu.cmake), which has its own library.c.
set(kernels_cuda_c context.c matmul.c matmul_cublas.c attention.c attention_own.c rows.c
    rows_sparse.c update.c backend.c)
set(kernels_cuda_cu matmul_plain.cu rows_norm.cu rows_point.cu rows_embedding.cu rows_loss.cu
    update_adam.cu update_sums.cu attention_forward.cu attention_key_grad.cu attention_query_grad.cu
    attention_plain.cu attention_plain_grad.cu attention_compare.cu)
set(KERNELS_CUDA_SOURCES "")
set(is_complete TRUE)
foreach(name ${kernels_cuda_c} ${kernels_cuda_cu})
    if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/cuda/${name})
        list(APPEND KERNELS_CUDA_SOURCES ${CMAKE_CURRENT_LIST_DIR}/cuda/${name})
    else()
        set(is_complete FALSE)
    endif()
endforeach()
set_property(GLOBAL PROPERTY SLUICE_KERNELS_CUDA_SOURCES ${KERNELS_CUDA_SOURCES})

add_library(kernels_cuda_absent OBJECT cuda_absent.c)
target_link_libraries(kernels_cuda_absent PUBLIC sluice_options sluice_base)
if(SLUICE_CUDA_FOUND)
    # cuDNN's backend API is used through its header alone; the library is loaded at run time.
    # Its header must be of 9.8 or later, the first with descriptions of devices.
    find_path(CUDNN_INCLUDE_DIR cudnn_backend.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    set(KERNELS_CUDNN_SOURCES "")
    if(CUDNN_INCLUDE_DIR AND EXISTS ${CUDNN_INCLUDE_DIR}/cudnn_graph.h)
        file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_graph.h has_deviceprop
             REGEX CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)
        if(has_deviceprop)
            foreach(name attention_cudnn.c cudnn_graph.c cudnn_library.c)
                list(APPEND KERNELS_CUDNN_SOURCES ${CMAKE_CURRENT_LIST_DIR}/cuda/${name})
            endforeach()
        endif()
    endif()
    set_property(GLOBAL PROPERTY SLUICE_KERNELS_CUDNN_SOURCES ${KERNELS_CUDNN_SOURCES})
    add_library(kernels_cuda OBJECT ${KERNELS_CUDA_SOURCES} cuda/library.c)
    if(KERNELS_CUDNN_SOURCES)
        target_sources(kernels_cuda PRIVATE ${KERNELS_CUDNN_SOURCES})
        target_include_directories(kernels_cuda PRIVATE ${CUDNN_INCLUDE_DIR})
    else()
        target_sources(kernels_cuda PRIVATE cuda/attention_cudnn_absent.c)
    endif()
    target_link_libraries(kernels_cuda PUBLIC sluice_options sluice_base CUDA::cudart_static)
endif()
if(SLUICE_CUDA_FOUND AND is_complete)
    set(KERNELS_GPU kernels_cuda CACHE INTERNAL "the object library of the GPU backend")
else()
    set(KERNELS_GPU kernels_cuda_absent CACHE INTERNAL "the object library of the GPU backend")
endif()
