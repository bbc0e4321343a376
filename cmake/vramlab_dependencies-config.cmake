# The libraries that scripts/bundle carries along, as the targets that cmake/Dependencies.cmake otherwise makes with
# pkg-config, and as oneDNN's own files, which CMake 4 does not read. In the bundle this file is .deps/lib/cmake/vramlab_dependencies/vramlab_dependencies-config.cmake.
get_filename_component(carried "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Threads REQUIRED)

# Makes PkgConfig::<target> of a static library in the bundle; what it needs itself follows.
function(vramlab_carried target file)
  add_library(PkgConfig::${target} STATIC IMPORTED)
  set_target_properties(
    PkgConfig::${target} PROPERTIES IMPORTED_LOCATION "${carried}/lib/${file}" INTERFACE_LINK_LIBRARIES "${ARGN}"
                                    INTERFACE_INCLUDE_DIRECTORIES "${carried}/include")
endfunction()

vramlab_carried(hdf5 libhdf5.a "${carried}/lib/libsz.a" "${carried}/lib/libaec.a" "${carried}/lib/libz.a" ${CMAKE_DL_LIBS} m)
set(VRAMLAB_HDF5_HL "${carried}/lib/libhdf5_hl.a" CACHE FILEPATH "HDF5's high-level library")
vramlab_carried(yaml libyaml.a)
vramlab_carried(jansson libjansson.a)
vramlab_carried(hwloc libhwloc.a carried_udev m)
vramlab_carried(crypto libcrypto.a Threads::Threads ${CMAKE_DL_LIBS})

# There are no static ones of these.
function(vramlab_carried_shared target file)
  add_library(${target} SHARED IMPORTED)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${carried}/lib/${file}" IMPORTED_SONAME "${file}"
                                             INTERFACE_INCLUDE_DIRECTORIES "${carried}/include")
endfunction()

vramlab_carried_shared(carried_udev libudev.so.1)
vramlab_carried_shared(PkgConfig::cmocka libcmocka.so.0)
vramlab_carried_shared(DNNL::dnnl libdnnl.so.3)
