"""What is compiled, where there is a compiler; all the rest is in pyproject.toml."""

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

PARTS = ("", "_losses", "_products", "_steps", "_metrics", "_groups")
SOURCES = [f"sqlfl/models/native/compiled{part}.c" for part in PARTS]
HEADERS = ["sqlfl/models/native/compiled.h"]
FLAGS = {
    "unix": [
        "-O3",
        "-g0",
        "-fopenmp-simd",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fvisibility=hidden",
    ],
    "msvc": ["/O2"],
}


class BuildLibrary(build_ext):
    """A plain library, which ctypes loads: of no version of Python, and without its door."""

    def build_extensions(self) -> None:
        for extension in self.extensions:
            extension.extra_compile_args = FLAGS.get(self.compiler.compiler_type, [])
        super().build_extensions()

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"


class Wheel(bdist_wheel):
    """For each Python, of one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    # optional: where it cannot be compiled, numpy does its work
    ext_modules=[
        Extension("sqlfl.models.native._compiled", SOURCES, depends=HEADERS, optional=True)
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
