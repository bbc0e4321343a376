# The libraries the suite stands on. Targets: DNNL::dnnl, PkgConfig::hdf5, PkgConfig::yaml, PkgConfig::jansson,
# PkgConfig::hwloc, PkgConfig::crypto, PkgConfig::cmocka, OpenMP::OpenMP_C; where it is, nifti::nifti.

# After what the caller names: an active conda environment, and what scripts/setup fetched.
# What is installed looks there too: CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out what lies in the checkout.
foreach(prefix IN ITEMS "$ENV{CONDA_PREFIX}" "${PROJECT_SOURCE_DIR}/.deps" "${PROJECT_SOURCE_DIR}/.deps/usr")
  if(prefix AND EXISTS "${prefix}")
    list(APPEND CMAKE_PREFIX_PATH "${prefix}")
    list(APPEND CMAKE_INSTALL_RPATH "${prefix}/lib")
  endif()
endforeach()
# Libraries unpacked there need each other: RPATH, unlike RUNPATH, is also searched for those. Their pkg-config
# files take the architecture's headers for granted.
if(EXISTS "${PROJECT_SOURCE_DIR}/.deps/usr/lib")
  set(unpacked "${PROJECT_SOURCE_DIR}/.deps/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  include_directories(SYSTEM "${PROJECT_SOURCE_DIR}/.deps/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}")
  list(APPEND CMAKE_BUILD_RPATH "${unpacked}")
  list(APPEND CMAKE_INSTALL_RPATH "${unpacked}")
  add_link_options("LINKER:--disable-new-dtags" "LINKER:-rpath-link,${unpacked}")
endif()

find_package(vramlab_dependencies CONFIG QUIET) # what scripts/bundle carries along
find_package(PkgConfig QUIET)
find_package(OpenMP QUIET COMPONENTS C)
if(NOT TARGET DNNL::dnnl)
  find_package(dnnl 3 CONFIG QUIET)
endif()

set(missing "")
if(NOT OpenMP_C_FOUND)
  list(APPEND missing "OpenMP (part of gcc)")
endif()
if(NOT TARGET DNNL::dnnl)
  list(APPEND missing "oneDNN 3.x (libdnnl with its CMake files)")
endif()

# Finds one library by its pkg-config names, the first that is there.
macro(vramlab_find_library target description)
  if(PkgConfig_FOUND AND NOT TARGET PkgConfig::${target})
    pkg_search_module(${target} QUIET IMPORTED_TARGET ${ARGN})
  endif()
  if(NOT TARGET PkgConfig::${target})
    list(APPEND missing "${description}")
  endif()
endmacro()

if(NOT PkgConfig_FOUND AND NOT vramlab_dependencies_FOUND)
  list(APPEND missing "pkg-config")
endif()
vramlab_find_library(yaml "libyaml (yaml-0.1)" yaml-0.1)
vramlab_find_library(jansson "jansson" "jansson>=2.9")
vramlab_find_library(hwloc "hwloc" "hwloc>=2.0")
vramlab_find_library(crypto "libcrypto (OpenSSL 1.1.1 or newer)" "libcrypto>=1.1.1")
if(BUILD_TESTING)
  vramlab_find_library(cmocka "cmocka" "cmocka>=1.1.5")
endif()

# HDF5 has no pkg-config file in every distribution.
if(PkgConfig_FOUND AND NOT TARGET PkgConfig::hdf5)
  pkg_search_module(hdf5 QUIET IMPORTED_TARGET hdf5-serial hdf5)
endif()
if(NOT TARGET PkgConfig::hdf5)
  find_package(HDF5 QUIET COMPONENTS C)
  if(HDF5_FOUND)
    add_library(PkgConfig::hdf5 INTERFACE IMPORTED)
    target_include_directories(PkgConfig::hdf5 INTERFACE ${HDF5_C_INCLUDE_DIRS})
    target_link_libraries(PkgConfig::hdf5 INTERFACE ${HDF5_C_LIBRARIES})
  else()
    list(APPEND missing "HDF5 (C library)")
  endif()
endif()

# NIfTI volumes (vramlab convert), where nifticlib is; Debian has its CMake files only in part.
find_path(VRAMLAB_NIFTI_INCLUDE nifti1_io.h PATH_SUFFIXES nifti)
find_library(VRAMLAB_NIFTI_IO niftiio)
find_library(VRAMLAB_NIFTI_ZNZ znz)
mark_as_advanced(VRAMLAB_NIFTI_INCLUDE VRAMLAB_NIFTI_IO VRAMLAB_NIFTI_ZNZ)
if(VRAMLAB_NIFTI_INCLUDE AND VRAMLAB_NIFTI_IO AND VRAMLAB_NIFTI_ZNZ)
  add_library(nifti::nifti INTERFACE IMPORTED)
  target_include_directories(nifti::nifti INTERFACE "${VRAMLAB_NIFTI_INCLUDE}")
  target_link_libraries(nifti::nifti INTERFACE "${VRAMLAB_NIFTI_IO}" "${VRAMLAB_NIFTI_ZNZ}")
else()
  message(STATUS "nifticlib not found (Debian: libnifti2-dev): vramlab convert will read no NIfTI files")
endif()

if(missing)
  list(JOIN missing "\n  " text)
  message(FATAL_ERROR "vramlab needs, and this machine does not offer:\n  ${text}\n"
                      "Run scripts/setup (scripts/setup --user without root); it installs or names what is missing. "
                      "Libraries in another place are found through CMAKE_PREFIX_PATH.")
endif()
