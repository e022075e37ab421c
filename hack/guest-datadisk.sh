#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes internal/guest/datadisk/template.ext4.zst, the empty ext4 file system that is copied to every
# data disk, so that no mkfs runs on a host. The file is committed: this script is run by hand, when
# the file system is to change.
#
#     hack/guest-datadisk.sh
#
# The same mke2fs makes the same bytes. Disks that exist keep what they were made with.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

out="$(dirname "${BASH_SOURCE[0]}")/../internal/guest/datadisk/template.ext4.zst"
readonly out
command -v mke2fs >/dev/null || apt_install e2fsprogs
command -v zstd >/dev/null || apt_install zstd
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

# Blocks of 4 KiB, since one of 1 KiB grows slowly. The guest grows it while it is mounted: to 2 TiB
# within the blocks that are reserved for that (resize=, in blocks), and further by another way of
# the kernel's. The journal cannot grow, so it is as large as the template allows.
truncate --size 64M "${work}/template.ext4"
readonly fixed=00000000-0000-4000-8000-000000000000 # the guest gives a volume its own, by which it knows that the volume is ready
E2FSPROGS_FAKE_TIME=1700000000 mke2fs -q -F -t ext4 -T default -b 4096 -i 8192 -I 256 -m 0 -J size=16 -O 64bit,metadata_csum,metadata_csum_seed \
	-E "lazy_itable_init=1,lazy_journal_init=1,nodiscard,resize=536870912,root_owner=0:0,hash_seed=${fixed}" \
	-U "${fixed}" -L drover-data "${work}/template.ext4"
zstd -q -19 --no-check -f "${work}/template.ext4" -o "${out}"
echo "guest-datadisk.sh: $(stat --format %s "${out}") bytes, by $(mke2fs -V 2>&1 | head -n 1)"
