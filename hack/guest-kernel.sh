#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the folder of the kernel that boots container images as machines, and makes it:
#
#     hack/guest-kernel.sh
#
# The folder has vmlinux, Debian's kernel for clouds as an ELF file, which QEMU starts by its PVH
# entry; modules/, those that the program in the initramfs loads, with modules.order; modules-DIGEST.erofs,
# a file system with all modules, whose name has the digest of vmlinux; depmod/, the files of depmod in it;
# and kernel.json, which names the versions, the files' SHA-256 and the source package that the kernel was built from.
# The kernel is under the GPL, version 2, and stays a file of its own.
#
# It comes by apt-get download, as the version that apt offers, and is not installed. The cache
# (hack/cache.sh) has a folder for each version of this script and of the program that it runs, and keeps
# it until a month after its last use.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

cache="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
version="$(cat "${BASH_SOURCE[0]}" "${root}"/hack/guest/modules/*.go "${root}"/internal/guest/modules/signature.go "${root}"/internal/image/erofs/{encode,inode,plan,writer}.go | sha256sum)"
dir="${cache}/guest-kernel-${version:0:16}"
readonly cache root dir
# What the program loads, in this order, each behind those that it needs.
readonly modules=(
	virtio_pci qemu_fw_cfg virtio_console virtio_blk
	erofs overlay
	virtio_net virtio-rng virtio_balloon
	evdev button pvpanic-mmio
)

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

# number_at prints the number of 4 bytes at an offset of a file.
number_at() { od --address-radix=n --format=u4 --endian=little --skip-bytes="$2" --read-bytes=4 "$1" | tr -d ' '; }

# extract_elf takes the ELF file out of a bzImage, whose header says where it is (the kernel's
# Documentation/arch/x86/boot.rst). The last 4 bytes of the payload are its length.
extract_elf() {
	local sectors offset length
	sectors="$(od --address-radix=n --format=u1 --skip-bytes=$((0x1f1)) --read-bytes=1 "$1" | tr -d ' ')"
	offset=$((("${sectors}" + 1) * 512 + $(number_at "$1" $((0x248)))))
	length=$(($(number_at "$1" $((0x24c))) - 4))
	tail --bytes=+$((offset + 1)) "$1" | head --bytes="${length}" >"${work}/payload" || [[ $? -eq 141 ]]
	case "$(od --address-radix=n --format=x1 --read-bytes=4 "${work}/payload")" in
	" fd 37 7a 58") unpack xz xz-utils ;;
	" 28 b5 2f fd") unpack zstd zstd ;;
	" 02 21 4c 18") unpack lz4 lz4 ;;
	" 1f 8b "*) unpack gzip gzip ;;
	*) die "the kernel is compressed in a way that this script does not know" ;;
	esac
	[[ "$(head --bytes=4 "$2")" == $'\x7fELF' ]] || die "what the kernel unpacks is no ELF file"
	# The note of the PVH entry: its name, and its type of 18.
	LC_ALL=C grep --quiet --text --perl-regexp '\x04\0\0\0.\0\0\0\x12\0\0\0Xen\0' "$2" || die "the kernel has no PVH entry"
}

# unpack decompresses the payload with a program of a package.
unpack() {
	command -v "$1" >/dev/null || apt_install "$2"
	"$1" --decompress --stdout <"${work}/payload" >"${work}/new/vmlinux" 2>"${work}/unpack.log" ||
		die "$1 could not unpack the kernel: $(<"${work}/unpack.log")"
}

# add_module adds a module behind those that it needs. One that is not there is part of the kernel.
add_module() {
	local name="${1//-/_}" file need
	[[ ! -f "${work}/new/modules/${name}.ko" ]] || return 0
	file="$(find "${work}/root" -name "${name//_/[_-]}.ko*" | head -n 1)"
	case "${file}" in
	"") return 0 ;;
	*.xz) xz --decompress --stdout "${file}" >"${work}/${name}.ko" ;;
	*.zst) zstd --quiet --decompress --stdout "${file}" >"${work}/${name}.ko" ;;
	*) cp "${file}" "${work}/${name}.ko" ;;
	esac
	# Text of the module, such as "depends=virtio,virtio_ring", which ends with a NUL.
	for need in $(LC_ALL=C grep --text --only-matching --max-count=1 --perl-regexp '\0depends=\K[a-zA-Z0-9_,-]+' "${work}/${name}.ko" | tr , ' '); do
		add_module "${need}"
	done
	mv "${work}/${name}.ko" "${work}/new/modules/"
	echo "${name}.ko" >>"${work}/new/modules/modules.order"
}

# pack_modules writes the file system with all modules and the files of depmod. It sets tree and packed.
pack_modules() {
	tree="$(dirname "$(find "${work}/root" -path '*/lib/modules/*/modules.order')")"
	find "${tree}" -name '*.ko.xz' -exec xz --decompress {} +
	find "${tree}" -name '*.ko.zst' -exec zstd --quiet --decompress --rm {} +
	PATH="${PATH}:/usr/sbin:/sbin"
	command -v depmod >/dev/null || apt_install kmod
	depmod --basedir "${tree%/lib/modules/*}" "$(basename "${tree}")" 2>"${work}/depmod.log" || die "depmod failed: $(tail -n 1 "${work}/depmod.log")"
	mkdir "${work}/new/depmod"
	cp "${tree}"/modules.* "${work}/new/depmod/"
	# Where modules.devname is, systemd runs kmod, and is degraded if the image lacks kmod. The guest's program makes the devices.
	mv "${tree}/modules.devname" "${tree}/devices"
	vmlinux="$(sha256sum "${work}/new/vmlinux" | cut -d ' ' -f 1)"
	packed="modules-${vmlinux:0:16}.erofs"
	(cd "${root}" && go run -trimpath -buildvcs=false ./hack/guest/modules "${tree}" "${vmlinux}" "${work}/new/${packed}")
}

# describe writes kernel.json.
describe() {
	local deb=("${work}"/*.deb) source
	# "linux (= 6.1.1-1)": the package itself is of a source that adds signatures alone.
	source="$(dpkg-deb --field "${deb[0]}" Built-Using)"
	[[ "${source}" == linux* ]] || die "the package does not name the source that it was built from: \"${source}\""
	cat >"${work}/new/kernel.json" <<-END
		{
		  "release": "$(basename "${tree}")",
		  "package": "$(dpkg-deb --field "${deb[0]}" Package)",
		  "version": "$(dpkg-deb --field "${deb[0]}" Version)",
		  "source": "$(sed -E 's/^(.*) \(= (.*)\)$/\1 \2/' <<<"${source}")",
		  "license": "GPL-2.0-only",
		  "packageSHA256": "$(sha256sum "${deb[0]}" | cut -d ' ' -f 1)",
		  "vmlinuxSHA256": "${vmlinux}",
		  "modulesSHA256": "$(sha256sum "${work}/new/${packed}" | cut -d ' ' -f 1)"
		}
	END
}

mkdir -p "${dir}"
exec 9>"${dir}/.lock"
flock 9 # tests of several packages and checkouts may come here at the same time
if [[ -f "${dir}/kernel.json" ]]; then
	touch "${dir}"
	echo "${dir}"
	exit 0
fi
echo "guest-kernel.sh: fetching a kernel" >&2
mkdir -p "${work}/new/modules"
fetch_cloud_kernel "${work}"
kernels=("${work}"/root/boot/vmlinuz-*)
extract_elf "${kernels[0]}" "${work}/new/vmlinux"
for module in "${modules[@]}"; do
	add_module "${module}"
done
[[ -s "${work}/new/modules/modules.order" ]] || die "the package has none of the modules ${modules[*]}"
pack_modules
describe
mv "${work}/new/kernel.json" "${work}/"
rm -rf "${dir:?}"/*
mv "${work}"/new/* "${dir}/"
mv "${work}/kernel.json" "${dir}/" # last: it says that all is there
find "${cache}" -maxdepth 1 -name 'guest-kernel*' -mtime +30 -exec rm -rf {} +
echo "${dir}"
