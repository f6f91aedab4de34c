# Tests of the repository itself: which folder includes and links which, the top level, installing,
# the command line. They need no accelerator and no data.

# Lists the folders that each folder links, one line for each, for check_includes.sh. The list is
# complete here, because CMake reads all folders before the tests.
set(links "")
foreach(folder src/base kernels tiers swap src/config src/model src/plan src/comm src/text src/data src/format
        src/report src/setup src/engine src/state src/hf src/infer src/train src/profile src/probe src/cli)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt)
        continue()
    endif()
    set(linked "")
    get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target ${targets})
        get_target_property(libraries ${target} LINK_LIBRARIES)
        foreach(library ${libraries})
            if(TARGET ${library} AND library MATCHES "^(sluice|kernels)_")
                get_target_property(source_dir ${library} SOURCE_DIR)
                file(RELATIVE_PATH other ${PROJECT_SOURCE_DIR} ${source_dir})
                list(APPEND linked ${other})
            endif()
        endforeach()
    endforeach()
    list(REMOVE_DUPLICATES linked)
    list(REMOVE_ITEM linked ${folder} "")
    list(JOIN linked " " linked)
    string(APPEND links "${folder}: ${linked}\n")
endforeach()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/folder_links.txt "${links}")

set(checks ${CMAKE_CURRENT_SOURCE_DIR}/checks)
test_line(repo_includes COMMAND ${checks}/check_includes.sh ${PROJECT_SOURCE_DIR}
          ${CMAKE_CURRENT_BINARY_DIR}/folder_links.txt LABELS cpu)
test_line(repo_includes_canary COMMAND ${checks}/check_includes.sh --self-test LABELS cpu)
test_line(repo_links COMMAND ${checks}/check_links.sh ${PROJECT_SOURCE_DIR} LABELS cpu)
test_line(repo_links_canary COMMAND ${checks}/check_links.sh --self-test LABELS cpu)
test_line(repo_tree COMMAND ${checks}/check_tree.sh ${PROJECT_SOURCE_DIR} LABELS cpu)
test_line(repo_install COMMAND ${checks}/check_install.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER} LABELS cpu)

# The targets of perf/ are made after this folder is read, so this tests the option instead.
if(SLUICE_PERF)
    test_line(repo_perf COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_perf.sh table ${PROJECT_SOURCE_DIR}
              ${PROJECT_BINARY_DIR} LABELS cpu)
endif()

sluice_test(test_cli_options LIBS sluice_cli LABELS cpu debug)
test_line(perf_bigram COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_bigram.sh
          ${PROJECT_SOURCE_DIR}/perf/training/bigram.sh LABELS cpu debug)
sluice_test(test_cli_plan LIBS PkgConfig::JANSSON LABELS cpu debug TIMEOUT 180)
# Long searches, whose claims are seconds of plans: test_cli_plan searches under the sanitizers.
sluice_test(test_cli_search LIBS PkgConfig::JANSSON LABELS cpu TIMEOUT 120)
foreach(test test_cli_plan test_cli_search)
    target_compile_definitions(${test} PRIVATE SLUICE_PROGRAM="$<TARGET_FILE:sluice>")
    add_dependencies(${test} sluice)
endforeach()
sluice_test(test_cli_published LIBS PkgConfig::JANSSON LABELS cpu)
target_compile_definitions(test_cli_published PRIVATE SLUICE_PROGRAM="$<TARGET_FILE:sluice>"
                           SLUICE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
add_dependencies(test_cli_published sluice)
test_line(cli_commands COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_cli.sh $<TARGET_FILE:sluice>
          ${PROJECT_VERSION} LABELS cpu debug)
test_line(cli_runs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_runs.sh $<TARGET_FILE:sluice> LABELS cpu nvme)
test_line(cli_profile COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_profile.sh $<TARGET_FILE:sluice>
          ${PROJECT_SOURCE_DIR} LABELS cpu nvme TIMEOUT 240)
test_line(cli_ranks COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_cli_ranks.sh $<TARGET_FILE:sluice>
          ${PROJECT_SOURCE_DIR} LABELS cpu mpi TIMEOUT 180)

test_line(slow.machine COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_machine.sh $<TARGET_FILE:sluice>
          $<TARGET_FILE:test_tiers_topology> LABELS cpu nvme slow TIMEOUT 1200)
test_line(slow.train_tutorial_jobs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_tutorial_jobs.sh
          $<TARGET_FILE:sluice> ${PROJECT_SOURCE_DIR} LABELS cpu mpi nvme slow TIMEOUT 600)
