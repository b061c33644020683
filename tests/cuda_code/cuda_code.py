#!/usr/bin/env python3
"""Holds the GPU code of a binary against what it was built for: every architecture is there, all of them have
the same kernels, and no kernel keeps more in memory for want of registers than its twin of path 9.0a.

cuda_code.py --binary FILE --architectures "80;90a-real" [--cuobjdump TOOL] [--table]
"""
import argparse
import re
import subprocess
import sys

FAST = "path_90a"
# Kernels that path 9.0a alone has: products by warpgroups of a prefill's experts, and both layers of region heads.
ONLY_FAST = {"grouped_product_kernel", "region_products_kernel"}
# And those that the others have in place of the first.
ONLY_LOWER = {"few_row_experts_kernel", "product_kernel"}


def expected_architectures(names):
    """Machine code and PTX of a CMAKE_CUDA_ARCHITECTURES list, as sets of "90a"."""
    code, ptx = set(), set()
    for name in names.split(";"):
        number, _, kind = name.partition("-")
        if kind in ("", "real"):
            code.add(number)
        if kind in ("", "virtual"):
            ptx.add(number)
    return code, ptx


def listed(text):
    """Architectures of `cuobjdump --list-elf` or `--list-ptx`."""
    return set(re.findall(r"\.sm_(\w+)\.(?:cubin|ptx)", text))


def kernels(text):
    """{(architecture, path, kernel): bytes of stack} of `cuobjdump --dump-resource-usage`, names demangled."""
    found, architecture, name = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"\s*arch = sm_(\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (.+):\s*$", line):
            name = match[1]
        elif (match := re.search(r"\bSTACK:(\d+)", line)) and name:
            path = re.search(r"path_\w+?(?=::)", name)
            plain = re.sub(r"path_\w+?::", "", name)
            found[architecture, path[0] if path else "", plain] = int(match[1])
            name = None
    return found


def faults(stacks, code):
    """What is wrong with the kernels of each architecture of `code`."""
    wrong = []
    by_architecture = {a: {n: (p, s) for (b, p, n), s in stacks.items() if a == b} for a in sorted(code)}
    names = set().union(*(set(k) for k in by_architecture.values())) if by_architecture else set()
    if not names:
        wrong.append("there are no kernels")
    for architecture, own in by_architecture.items():
        # Kernels are templates of what differs (a head's tile): those may have other names.
        missing = {n.split("<")[0] for n in names} - {n.split("<")[0] for n in own}
        elsewhere = ONLY_LOWER if FAST in {p for p, _ in own.values()} else ONLY_FAST
        missing = {n for n in missing if n.split("::")[-1] not in elsewhere}
        if missing:
            wrong.append(f"sm_{architecture} lacks {', '.join(sorted(missing))}")
    fast = {n: s for (_, p, n), s in stacks.items() if p == FAST}
    for (architecture, path, name), stack in sorted(stacks.items()):
        if path in ("", FAST) or name not in fast or stack <= fast[name]:
            continue
        wrong.append(f"sm_{architecture}: {name}: {stack} bytes of stack, its twin has {fast[name]}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--architectures", required=True)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--table", action="store_true", help="print every kernel's stack")
    options = parser.parse_args()

    def run(*arguments):
        return subprocess.run([options.cuobjdump, *arguments, options.binary], capture_output=True, text=True).stdout

    code, ptx = expected_architectures(options.architectures)
    wrong = []
    for what, wanted, there in (("machine code", code, listed(run("--list-elf"))), ("PTX", ptx, listed(run("--list-ptx")))):
        if missing := wanted - there:
            wrong.append(f"no {what} of {', '.join(sorted(missing))}: there is {', '.join(sorted(there)) or 'none'}")
    usage = run("--dump-resource-usage")
    demangled = subprocess.run(["c++filt"], input=re.sub(r"(Function \S+?):", r"\1 :", usage), capture_output=True,
                               text=True, check=True).stdout.replace(" :", ":")
    stacks = kernels(demangled)
    wrong += faults(stacks, code)
    if options.table:
        for (architecture, path, name), stack in sorted(stacks.items()):
            print(f"{architecture:>4} {path:9} {stack:5} {name[:120]}")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(stacks)} kernels for {', '.join(sorted(code | ptx))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
