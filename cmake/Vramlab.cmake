# How a folder becomes a library, a backend a module, and a file a test.
#
#   vramlab_library(<folder> SOURCES ... [DEPENDS <folder>...] [LINK <target>...])
#     static library vramlab_<folder>, "/" replaced by "_"
#   vramlab_program(<name> SOURCES ... [DEPENDS <folder>...] [LINK <target>...])
#     executable <name> in bin/
#   vramlab_module(<name> SOURCES ... [DEPENDS <folder>...] [LINK <target>...])
#     bin/vramlab_<name>.so beside the program, loaded on first use; exports vl_module_device_open alone
#   vramlab_test(<name> SOURCES ... [LIBRARIES <folder>...] [LINK <target>...] LABELS ... [TIMEOUT <s>])
#     a cmocka program, target test_<name>, run by CTest; a name that another folder's test has taken gets its
#     own folder's name in front
#   vramlab_command_test(<name> COMMAND <command>... LABELS ... [TIMEOUT <s>])
#     any command run by CTest
#
# DEPENDS and LIBRARIES name folders of this repository ("memory", "kernels/cpu"), LINK names targets of other
# projects ("DNNL::dnnl", "PkgConfig::jansson", "m"). Both are passed on to whoever links the library.
# Exit code 77 means skipped. Tests labelled bench or slow run only under the test presets of that name.

option(VRAMLAB_WERROR "Treat compiler warnings as errors" OFF)
set(VRAMLAB_SANITIZE "" CACHE STRING "Sanitizers to build with, for example 'address,leak' or 'undefined'")

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF) # ISO mode also keeps the compiler from fusing multiply and add on its own
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # libraries found in a prefix of the user's are found again
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT multi_config)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

# Builds what tests labelled cuda run.
if(BUILD_TESTING)
  add_custom_target(cuda_tests)
endif()

set(VRAMLAB_BIN "${PROJECT_BINARY_DIR}/bin")

add_library(vramlab_options INTERFACE)
target_include_directories(vramlab_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_definitions(vramlab_options INTERFACE _GNU_SOURCE VRAMLAB_VERSION="${PROJECT_VERSION}")
target_compile_options(
  vramlab_options
  INTERFACE "$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wconversion;-Wshadow;-Wstrict-prototypes>"
            "$<$<AND:$<BOOL:${VRAMLAB_WERROR}>,$<COMPILE_LANGUAGE:C>>:-Werror>")
if(VRAMLAB_SANITIZE)
  target_compile_options(
    vramlab_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${VRAMLAB_SANITIZE};-fno-omit-frame-pointer>"
                              "$<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>")
  target_link_options(vramlab_options INTERFACE "-fsanitize=${VRAMLAB_SANITIZE}")
endif()

function(vramlab_target_name folder variable)
  string(REPLACE "/" "_" name "vramlab_${folder}")
  set(${variable} "${name}" PARENT_SCOPE)
endfunction()

# Links a target with folders of this repository and targets of others.
function(vramlab_link target scope folders others)
  target_link_libraries(${target} ${scope} vramlab_options)
  foreach(folder IN LISTS folders)
    vramlab_target_name(${folder} library)
    target_link_libraries(${target} ${scope} ${library})
  endforeach()
  target_link_libraries(${target} ${scope} ${others})
endfunction()

function(vramlab_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;LINK")
  vramlab_target_name(${folder} name)
  add_library(${name} STATIC ${arg_SOURCES})
  vramlab_link(${name} PUBLIC "${arg_DEPENDS}" "${arg_LINK}")
endfunction()

function(vramlab_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;LINK")
  add_executable(${name} ${arg_SOURCES})
  vramlab_link(${name} PRIVATE "${arg_DEPENDS}" "${arg_LINK}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${VRAMLAB_BIN}")
  install(TARGETS ${name} DESTINATION bin)
endfunction()

# The libraries a module shares with the program are linked into both: nothing in them is global. The version
# script keeps the module's copies to itself.
function(vramlab_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;LINK")
  set(script "${PROJECT_SOURCE_DIR}/cmake/module.map")
  add_library(vramlab_${name} MODULE ${arg_SOURCES})
  vramlab_link(vramlab_${name} PRIVATE "${arg_DEPENDS}" "${arg_LINK}")
  target_link_options(vramlab_${name} PRIVATE "LINKER:--version-script=${script}")
  set_target_properties(vramlab_${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${VRAMLAB_BIN}"
                                                   LINK_DEPENDS "${script}")
  install(TARGETS vramlab_${name} DESTINATION bin)
endfunction()

function(vramlab_command_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "COMMAND;LABELS")
  if(NOT arg_LABELS)
    message(FATAL_ERROR "test ${name}: LABELS must name at least one of unit model cli mpi cuda bench slow")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set(configuration "")
  foreach(label IN ITEMS bench slow)
    if(label IN_LIST arg_LABELS)
      list(APPEND configuration ${label})
    endif()
  endforeach()
  if(configuration)
    list(PREPEND configuration CONFIGURATIONS)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND} ${configuration})
  # A test program has its modules elsewhere than beside itself.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
                                          ENVIRONMENT "VRAMLAB_MODULES=${VRAMLAB_BIN};OMP_WAIT_POLICY=passive")
  if(bench IN_LIST arg_LABELS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
  if(cuda IN_LIST arg_LABELS)
    set_tests_properties(${name} PROPERTIES RESOURCE_GROUPS "gpus:1")
    if(NOT CTEST_RESOURCE_SPEC_FILE) # nobody says how many cards there are
      set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
    endif()
    list(GET arg_COMMAND 0 program)
    if(TARGET "${program}")
      add_dependencies(cuda_tests "${program}")
    endif()
  endif()
endfunction()

function(vramlab_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LIBRARIES;LINK;LABELS")
  if(TARGET test_${name})
    cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
    string(PREPEND name "${folder}_")
  endif()
  set(target test_${name})
  add_executable(${target} ${arg_SOURCES})
  vramlab_link(${target} PRIVATE "${arg_LIBRARIES}" "${arg_LINK}")
  target_link_libraries(${target} PRIVATE PkgConfig::cmocka)
  target_compile_definitions(${target} PRIVATE VRAMLAB_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(timeout "")
  if(arg_TIMEOUT)
    set(timeout TIMEOUT ${arg_TIMEOUT})
  endif()
  vramlab_command_test(${name} COMMAND ${target} LABELS ${arg_LABELS} ${timeout})
endfunction()
