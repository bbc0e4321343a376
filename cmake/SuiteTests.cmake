# Cells of a suite as tests.
#
#   vramlab_suite_tests(<suite> [FILTER <regex>] LABELS ... [TIMEOUT <s>])
#     a test for every cell of cases/suites/<suite>.yaml whose line (vramlab run <suite> --dry-run) matches, named
#     <suite>/<line>, labelled with suite, case and device beside LABELS. It runs the cell anew into cells/<suite>/<key>
#     of the build, hands its numbers and figures to CTest (run --ctest), and skips where the device is not here. One
#     of a card takes one of CTest's resource "gpus".
#
# What cells there are is asked of the built program, which is the only one that knows the format of suites.
function(vramlab_suite_tests suite)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILTER;TIMEOUT" "LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  set(yaml "${PROJECT_SOURCE_DIR}/cases/suites/${suite}.yaml")
  set(list "${CMAKE_CURRENT_BINARY_DIR}/${suite}_cells.cmake")
  set(lock gpu)
  if(CTEST_RESOURCE_SPEC_FILE)
    set(lock "")
  endif()
  add_custom_command(
    OUTPUT "${list}"
    COMMAND "${CMAKE_COMMAND}" -DPROGRAM=$<TARGET_FILE:vramlab> -DSUITE=${yaml} "-DFILTER=${arg_FILTER}" "-DLABELS=${arg_LABELS}"
            -DTIMEOUT=${arg_TIMEOUT} -DLOCK=${lock} -DSTORES=${PROJECT_BINARY_DIR}/cells -DLIST=${list}
            -P "${PROJECT_SOURCE_DIR}/cmake/ListSuiteTests.cmake"
    DEPENDS vramlab "${yaml}" "${PROJECT_SOURCE_DIR}/cmake/ListSuiteTests.cmake"
    COMMENT "Listing the cells of suite ${suite}"
    VERBATIM)
  add_custom_target(${suite}_cells ALL DEPENDS "${list}")
  # A build that lacks the list has one test, which cannot run, in the place of all.
  set(include "${CMAKE_CURRENT_BINARY_DIR}/${suite}_tests.cmake")
  set(there TRUE) # as for every test labelled so (Vramlab.cmake): only under the presets of that name
  foreach(label IN ITEMS bench slow)
    if(label IN_LIST arg_LABELS)
      set(there "CTEST_CONFIGURATION_TYPE STREQUAL ${label}")
    endif()
  endforeach()
  file(WRITE "${include}" "if(${there})\n  if(EXISTS \"${list}\")\n    include(\"${list}\")\n  else()\n"
                          "    add_test(${suite}_cells_not_built ${suite}_cells_not_built)\n"
                          "    set_tests_properties(${suite}_cells_not_built PROPERTIES LABELS \"${arg_LABELS}\")\n"
                          "  endif()\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include}")
endfunction()
