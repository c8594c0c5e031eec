# A front for the people who type make; the work is in scripts/ and CMake.
.PHONY: build test demo check lint format
build:
	cmake --preset cpu && cmake --build build
test:
	scripts/test
demo:
	scripts/demo
check:
	scripts/check
lint:
	scripts/lint
format:
	git ls-files 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'tests/*.h' 'tests/*.cpp' 'bench/*.h' 'bench/*.cpp' | xargs clang-format-14 -i
