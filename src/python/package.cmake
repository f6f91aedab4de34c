# What the wheel holds beside the modules of the folder sluice. The variables `extension` and
# `command` name the two binaries.
set(top ${CMAKE_CURRENT_LIST_DIR}/../..)
install(FILES ${extension} DESTINATION sluice COMPONENT python EXCLUDE_FROM_ALL)
install(PROGRAMS ${command} DESTINATION sluice/bin COMPONENT python EXCLUDE_FROM_ALL)
# The program looks for them beside its folder, under share/sluice.
install(FILES ${top}/configs/models.json ${top}/configs/clusters.json
        DESTINATION sluice/share/sluice COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${top}/LICENSE DESTINATION sluice COMPONENT python EXCLUDE_FROM_ALL)
configure_file(${CMAKE_CURRENT_LIST_DIR}/bundle.cmake.in bundle.cmake @ONLY)
install(SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/bundle.cmake COMPONENT python EXCLUDE_FROM_ALL)
