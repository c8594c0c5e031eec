# The CUDA side. CMake 3.25 knows no C++20 flag for nvcc 13: without these two lines .cu files compile as C++17.
set(METTLE_CUDA_ARCHITECTURES "80;90a" CACHE STRING "GPU architectures to build for; 80 includes PTX for newer ones")
set(CMAKE_CUDA_ARCHITECTURES ${METTLE_CUDA_ARCHITECTURES})
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
