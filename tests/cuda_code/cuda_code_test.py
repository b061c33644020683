#!/usr/bin/env python3
"""cuda_code.py finds what it is there to find."""
import unittest

import cuda_code

USAGE = """
Fatbin elf code:
arch = sm_90a
 Function void gapless::cuda::path_90a::k<(int)8>(Params):
  REG:168 STACK:8 SHARED:0
 Function void gapless::cuda::path_90a::decoder_kernel<Sequential, 32, x>(Params):
  REG:168 STACK:0 SHARED:0
arch = sm_80
 Function void gapless::cuda::path_80::k<(int)8>(Params):
  REG:168 STACK:{k} SHARED:0
 Function void gapless::cuda::path_80::decoder_kernel<Sequential, 32, x>(Params):
  REG:168 STACK:{decoder} SHARED:0
"""


class CudaCodeTest(unittest.TestCase):
    def faults(self, k, decoder, code=("80", "90a")):
        return cuda_code.faults(cuda_code.kernels(USAGE.format(k=k, decoder=decoder)), set(code))

    def test_equal_twins_pass(self):
        self.assertEqual(self.faults(8, 0), [])

    def test_a_kernel_that_spills_more_than_its_twin_is_found(self):
        found = self.faults(16, 0)
        self.assertEqual(len(found), 1)
        self.assertIn("sm_80", found[0])
        self.assertIn("16 bytes", found[0])

    def test_no_kernel_is_allowed_more(self):
        self.assertEqual(len(self.faults(8, 8)), 1)

    def test_an_architecture_without_kernels_is_found(self):
        self.assertTrue(any("sm_86 lacks" in line for line in self.faults(8, 0, ("80", "86", "90a"))))
        self.assertEqual(cuda_code.faults({}, {"80"}), ["there are no kernels"])

    def test_a_kernel_of_the_fast_path_alone_is_missed_there_only(self):
        both = {("90a", "path_90a", "k(P)"): 0, ("80", "path_80", "k(P)"): 0}
        name = "void gapless::cuda::(anonymous namespace)::grouped_product_kernel<1>(P)"
        self.assertEqual(cuda_code.faults({**both, ("90a", "path_90a", name): 0}, {"80", "90a"}), [])
        other = name.replace("grouped", "other")
        self.assertEqual(len(cuda_code.faults({**both, ("90a", "path_90a", other): 0}, {"80", "90a"})), 1)
        self.assertEqual(len(cuda_code.faults({**both, ("80", "path_80", name): 0}, {"80", "90a"})), 1)

    def test_a_kernel_of_lower_paths_alone_is_missed_there_only(self):
        both = {("90a", "path_90a", "k(P)"): 0, ("80", "path_80", "k(P)"): 0}
        name = "void gapless::cuda::(anonymous namespace)::few_row_experts_kernel<1>(P)"
        self.assertEqual(cuda_code.faults({**both, ("80", "path_80", name): 0}, {"80", "90a"}), [])
        self.assertEqual(len(cuda_code.faults({**both, ("90a", "path_90a", name): 0}, {"80", "90a"})), 1)

    def test_architectures_as_cmake_names_them(self):
        self.assertEqual(cuda_code.expected_architectures("80;90a-real;90-virtual"), ({"80", "90a"}, {"80", "90"}))
        self.assertEqual(cuda_code.listed("ELF file    1: gapless.1.sm_90a.cubin\nELF file 2: gapless.2.sm_80.cubin"),
                         {"80", "90a"})


if __name__ == "__main__":
    unittest.main()
