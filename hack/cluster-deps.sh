#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that what a node of test/cluster takes from the host is there: runc, CNI
# plugins, and nft for kube-proxy. It installs what is missing by apt, as root or with
# sudo. Safe to run again and again.
#
#     hack/cluster-deps.sh [engine]
#
# With "engine" also dockerd, which tests of deployments start.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

export PATH="${PATH}:/usr/sbin:/sbin"

packages=()
command -v runc >/dev/null || packages+=(runc)
command -v nft >/dev/null || packages+=(nftables)
[[ -x /usr/lib/cni/ptp && -x /usr/lib/cni/host-local && -x /usr/lib/cni/portmap ]] || packages+=(containernetworking-plugins)
# portmap uses it.
command -v iptables >/dev/null || packages+=(iptables)
[[ "${1:-}" != engine ]] || command -v dockerd >/dev/null || packages+=(docker.io)
[[ "${#packages[@]}" -eq 0 ]] || apt_install "${packages[@]}"
echo "cluster-deps.sh: $(runc --version | head -n 1), $(nft --version)"
