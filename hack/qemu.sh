#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that QEMU is there, and qemu-img, by which tests check disks: installs
# them by apt, as root or with sudo, where they are missing. For root it also makes the
# user as whom machines run. Safe to run again and again.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

readonly program=qemu-system-x86_64

command -v "${program}" >/dev/null || apt_install qemu-system-x86 seabios
command -v qemu-img >/dev/null || apt_install qemu-utils
[[ "$(id -u)" -ne 0 ]] || id drover-qemu >/dev/null 2>&1 ||
	useradd --system --no-create-home --shell /usr/sbin/nologin drover-qemu
echo "qemu.sh: $("${program}" --version | head -n 1)"
