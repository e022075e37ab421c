#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds what the cluster of test/cluster runs, and prints the folder that has it:
# Kubernetes and etcd, containerd, drover-cluster, and the programs of its images.
#
#     hack/cluster-binaries.sh
#
# Versions are in test/cluster/binaries/go.mod and test/cluster/containerd/go.mod. The
# programs of the same versions are built once for all checkouts, into the cache
# (hack/cache.sh); the folder has them beside the programs of this checkout.
set -o errexit -o nounset -o pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly root source="${root}/test/cluster"
# The same flags as in the Makefile, so that bin/drover shares what is compiled.
export GOFLAGS='-trimpath -buildvcs=false' GOWORK=off

hash="$({ go version && cat "${BASH_SOURCE[0]}" "${source}"/{binaries,containerd}/go.{mod,sum}; } | sha256sum | cut -c 1-12)"
cache="$("${root}/hack/cache.sh")/cluster"
readonly hash cache built="${cache}/${hash}" out="${root}/bin/cluster"
mkdir -p "${built}" "${out}"
exec 9>"${cache}/.build.lock"
flock 9 # tests of several packages may come here at the same time

build_kubernetes() {
	local version parts package=k8s.io/component-base/version
	version="$(go -C "${source}/binaries" list -m -f '{{.Version}}' k8s.io/kubernetes)"
	IFS=. read -ra parts <<<"${version#v}"
	go -C "${source}/binaries" build -o "${built}/" -ldflags \
		"-s -w -X ${package}.gitVersion=${version} -X ${package}.gitMajor=${parts[0]} -X ${package}.gitMinor=${parts[1]}" tool
	mv "${built}/server" "${built}/etcd" # its package is go.etcd.io/etcd/server/v3
}

build_containerd() {
	go -C "${source}/containerd" build -o "${built}/" -ldflags '-s -w' -tags 'no_btrfs no_zfs no_aufs no_devmapper' tool
}

if [[ ! -e "${built}/complete" ]]; then
	echo "cluster-binaries.sh: building Kubernetes, etcd and containerd; up to 15 minutes with an empty cache" >&2
	build_kubernetes >&2
	build_containerd >&2
	find "${cache}" -mindepth 1 -maxdepth 1 -type d ! -name "${hash}" -mtime +30 -exec rm -rf {} +
	touch "${built}/complete"
fi
cp --link --force "${built}"/* "${out}/" 2>/dev/null || cp --force "${built}"/* "${out}/"
CGO_ENABLED=0 go -C "${source}" build -o "${out}/" -ldflags '-s -w' ./cmd/... >&2
echo "${out}"
