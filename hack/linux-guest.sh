#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Linux guest for tests: DIR/vmlinuz, Debian's kernel for clouds, and
# DIR/initrd, with hack/guest/linux as its init and the modules that it needs.
#
#     hack/linux-guest.sh DIR
#
# The kernel comes by apt-get download and is not installed. It is kept in the cache
# (hack/cache.sh), or, where there is no apt-get, put into DIR by hand with its modules; the
# init is built each time.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

readonly out="${1:?usage: hack/linux-guest.sh DIR}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
dir="$("${root}/hack/cache.sh")/kernel"
command -v apt-get >/dev/null || dir="${out}"
readonly dir
readonly modules=(
	virtio virtio_ring virtio_pci virtio_pci_modern_dev virtio_pci_legacy_dev
	virtio_blk failover net_failover virtio_net virtio_balloon virtio-rng
	virtio_console
	evdev button cdrom isofs pvpanic pvpanic-mmio
)

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

fetch_kernel() {
	fetch_cloud_kernel "${work}" ": put vmlinuz and modules into ${out} by hand"
	mkdir -p "${dir}/modules"
	local module
	for module in "${modules[@]}"; do
		find "${work}/root" \( -name "${module}.ko" -o -name "${module}.ko.xz" \) -exec cp {} "${dir}/modules/" \;
	done
	unpack_modules
	compgen -G "${dir}/modules/*.ko" >/dev/null || die "the kernel's package has none of the modules ${modules[*]}"
	mv "${work}"/root/boot/vmlinuz-* "${dir}/vmlinuz"
	echo "${modules[*]}" >"${dir}/modules.list"
}

# is_complete : a kernel that was put there by hand, for lack of apt-get, has no list.
is_complete() {
	[[ -f "${dir}/vmlinuz" ]] || return 1
	command -v apt-get >/dev/null || return 0
	[[ -f "${dir}/modules.list" && "$(<"${dir}/modules.list")" == "${modules[*]}" ]]
}

# unpack_modules : from release 13 on Debian has them compressed, and the guest's
# init loads plain ones.
unpack_modules() {
	local packed=("${dir}"/modules/*.ko.xz)
	[[ -e "${packed[0]}" ]] || return 0
	command -v xz >/dev/null || apt_install xz-utils
	xz --decompress --force "${packed[@]}"
}

# pack makes the archive that the kernel unpacks. It may be one after the other
# of them, so that no cpio is needed for the program: see hack/guest/pack.
pack() {
	local init="${work}/initrd"
	mkdir "${init}"
	(cd "${root}" && CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -buildvcs=false -trimpath -ldflags "-s -w" -o "${init}/init" ./hack/guest/linux)
	mkdir "${init}/modules"
	cp "${dir}"/modules/*.ko "${init}/modules/"
	(cd "${root}" && go run -buildvcs=false ./hack/guest/pack "${init}" >"${out}/initrd.new")
	mv "${out}/initrd.new" "${out}/initrd"
}

mkdir -p "${dir}" "${out}"
exec 9>"${dir}/.lock"
flock 9 # tests of several packages and checkouts may come here at the same time
is_complete || fetch_kernel
[[ "${dir}" -ef "${out}" ]] || cp "${dir}/vmlinuz" "${out}/"
pack
