#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes a small container image: BusyBox (hack/busybox.sh) with the names of all its programs, and the
# files of a folder. It runs /start, which must be one of them.
#
#     hack/busybox-image.sh FILE FOLDER
#
# FILE is an archive as docker save writes one. It needs no engine, and the same files give the same image.
set -o errexit -o nounset -o pipefail

readonly out="${1:?usage: hack/busybox-image.sh FILE FOLDER}" files="${2:?usage: hack/busybox-image.sh FILE FOLDER}"
busybox="$("$(dirname "${BASH_SOURCE[0]}")/busybox.sh")"
pack="$(dirname "${BASH_SOURCE[0]}")/pack.sh"
readonly pack
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

mkdir -p "${work}"/root/{bin,tmp} "${work}/image"
cp "${busybox}" "${work}/root/bin/busybox"
for name in $("${busybox}" --list); do
	[[ "${name}" == busybox ]] || ln -s busybox "${work}/root/bin/${name}"
done
cp -R "${files}/." "${work}/root/"
chmod 755 "${work}/root/start"
"${pack}" 0 "${work}/root" . >"${work}/layer"
layer="$(sha256sum <"${work}/layer" | cut -d ' ' -f 1)"
gzip --no-name --stdout "${work}/layer" >"${work}/image/layer.tar.gz"
cat >"${work}/image/config.json" <<END
{"os": "linux", "architecture": "amd64", "config": {"Cmd": ["/start"], "Env": ["PATH=/bin"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:${layer}"]}}
END
echo '[{"Config": "config.json", "Layers": ["layer.tar.gz"]}]' >"${work}/image/manifest.json"
"${pack}" 0 "${work}/image" manifest.json config.json layer.tar.gz >"${out}"
