#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that what the tests need is there: a C compiler, which go test
# -race links with, a Docker engine that answers, QEMU, mke2fs, ssh and strace. It
# installs what is missing by apt, as root or with sudo, and fails where it cannot.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"

compiler="$(go env CC)"
command -v "${compiler%% *}" >/dev/null || apt_install gcc libc6-dev
command -v ssh >/dev/null || apt_install openssh-client
[[ -x /sbin/mke2fs ]] || apt_install e2fsprogs
command -v strace >/dev/null || apt_install strace
"${here}/dockerd.sh"
"${here}/qemu.sh"
