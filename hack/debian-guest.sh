#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds a Debian guest with the real cloud-init, guest agent, systemd and QEMU, for the
# slow tests of what those make of a VM's user-data, of Drover's questions and of its
# units, and prints the folder DIR in the cache (hack/cache.sh) that has it: DIR/debian.img, a raw disk that is one ext4 file system, and its kernel and
# initial RAM disk, DIR/vmlinuz and DIR/initrd.img.
#
#     hack/debian-guest.sh
#
# It needs root, takes a few minutes and 2 GB below DIR, and keeps what is there, unless
# DIR/packages says that it was built of other packages.
# SUITE (bookworm) and MIRROR say which Debian; debootstrap is installed by apt
# where it is missing.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/debian"
readonly dir
readonly suite="${SUITE:-bookworm}" mirror="${MIRROR:-http://deb.debian.org/debian}"
readonly size=2G
# The network is for a cloud-init that has something to configure; python3-cffi-backend
# stands for a virtual package, of which debootstrap knows nothing. QEMU is for the
# machines of a Drover in the guest.
readonly packages=systemd-sysv,dbus,udev,linux-image-cloud-amd64,cloud-init,ifupdown,isc-dhcp-client,iproute2,sudo,python3-cffi-backend,qemu-system-x86,qemu-guest-agent,openssh-server

# bootstrap makes the guest's file system in a folder.
bootstrap() {
	local root="$1"
	debootstrap --variant=minbase --include="${packages}" "${suite}" "${root}" "${mirror}" >"${root}.log" 2>&1 ||
		die "debootstrap failed: $(tail -n 20 "${root}.log" "${root}/debootstrap/debootstrap.log" 2>/dev/null)"
	echo "/dev/vda / ext4 defaults 0 1" >"${root}/etc/fstab"
	echo drover-before-cloud-init >"${root}/etc/hostname"
	# No other datasource is searched for, as on a known cloud.
	echo "datasource_list: [NoCloud]" >"${root}/etc/cloud/cloud.cfg.d/90_drover.cfg"
	rm -f "${root}"/var/cache/apt/archives/*.deb "${root}/etc/machine-id"
	: >"${root}/etc/machine-id"
}

is_built() {
	[[ -f "${dir}/debian.img" && -f "${dir}/vmlinuz" && -f "${dir}/initrd.img" && -f "${dir}/packages" ]] &&
		[[ "$(<"${dir}/packages")" == "${packages}" ]]
}

main() {
	is_built && return 0
	[[ "$(id -u)" -eq 0 ]] || die "debootstrap needs root"
	command -v debootstrap >/dev/null || apt_install debootstrap
	command -v mke2fs >/dev/null || apt_install e2fsprogs
	mkdir -p "${dir}"
	work="$(mktemp -d "${dir}/work.XXXXXX")"
	trap 'rm -rf --one-file-system "${work}"' EXIT # debootstrap may still have /proc mounted there
	echo "debian-guest.sh: making a Debian ${suite} in ${dir}, which takes a few minutes" >&2
	bootstrap "${work}/root"
	cp "${work}"/root/boot/vmlinuz-* "${work}/vmlinuz"
	cp "${work}"/root/boot/initrd.img-* "${work}/initrd.img"
	mke2fs -q -t ext4 -d "${work}/root" "${work}/debian.img" "${size}" >&2
	mv "${work}/vmlinuz" "${work}/initrd.img" "${work}/debian.img" "${dir}/"
	echo "${packages}" >"${dir}/packages"
}

main
echo "${dir}"
