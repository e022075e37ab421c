#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Assembles the guest of hack/guest/boot.s into a raw disk image of 1 MiB:
#
#     hack/boot-guest.sh OUT [LETTER [STUBBORN]]
#
# LETTER (A) ends its banner and distinguishes images; with STUBBORN 1 it ignores the
# power button. The assembler is the one that comes with the C compiler.
set -o errexit -o nounset -o pipefail

readonly out="${1:?usage: hack/boot-guest.sh OUT [LETTER [STUBBORN]]}"
readonly letter="${2:-A}" stubborn="${3:-0}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
as --32 --defsym "LETTER=$(printf '%d' "'${letter}")" --defsym "STUBBORN=${stubborn}" -o "${work}/boot.o" "${here}/guest/boot.s"
ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o "${work}/boot.img" "${work}/boot.o"
truncate -s 1M "${work}/boot.img"
mv "${work}/boot.img" "${out}"
