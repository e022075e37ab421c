#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the folder of a bare Debian in which tests install Drover's package:
#
#     hack/bare-debian.sh
#
# The folder has root.tar, a Debian with systemd and little more, and debs/, the packages that Drover's package
# needs besides. It needs root, and takes a minute. The cache (hack/cache.sh) keeps what it has made until this script
# changes. SUITE and MIRROR say which Debian; mmdebstrap is installed by apt where it is missing.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

readonly suite="${SUITE:-bookworm}" mirror="${MIRROR:-http://deb.debian.org/debian}"
dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/bare-debian"
made="${suite} $(sha256sum <"${BASH_SOURCE[0]}")"
readonly dir made

command -v systemd-nspawn >/dev/null || apt_install systemd-container >&2
command -v apt-ftparchive >/dev/null || apt_install apt-utils >&2
exec 9>"${dir}.lock"
flock 9 # tests may come here at the same time
if [[ -f "${dir}/made" && "$(<"${dir}/made")" == "${made}" ]]; then
	echo "${dir}"
	exit 0
fi
[[ "$(id -u)" -eq 0 ]] || die "needs root to make a Debian"
command -v mmdebstrap >/dev/null || apt_install mmdebstrap >&2
rm -rf "${dir}"
mkdir -p "${dir}/debs"
mmdebstrap --quiet --variant=minbase --include=systemd-sysv,dbus,udev,procps \
	--customize-hook="chroot \"\$1\" apt-get install --download-only --yes --no-install-recommends qemu-system-x86 passwd" \
	--customize-hook="copy-out /var/cache/apt/archives ${dir}/debs" --customize-hook="rm -f \"\$1\"/var/cache/apt/archives/*.deb" \
	"${suite}" "${dir}/root.tar" "${mirror}" >&2 || die "mmdebstrap failed"
mv "${dir}"/debs/archives/*.deb "${dir}/debs/"
rm -rf "${dir}/debs/archives"
echo "${made}" >"${dir}/made"
echo "${dir}"
