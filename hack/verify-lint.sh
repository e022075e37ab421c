#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lints all modules, formatting included, with the golangci-lint that
# hack/tools/lint pins and the rules of .golangci.yml. It is built with one linter
# more, kube-api-linter, for the API types: hack/kube-api-linter.yml.
#
#     hack/verify-lint.sh [FLAG...]
#
# Flags go to golangci-lint: --fix applies automatic fixes.
set -o errexit -o nounset -o pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly root
lint="$("${root}/hack/tool.sh" golangci-lint-kube-api-linter)"
readonly lint

export GOLANGCI_LINT_CACHE="${GOLANGCI_LINT_CACHE:-$("${root}/hack/cache.sh")/lint}"
# Kubernetes is large: early garbage collection keeps small machines from running out
# of memory.
export GOGC="${GOGC:-50}" GOWORK=off

failed=0
for module in . standalone test/cluster hack/image hack/plot; do
	echo "lint ${module}"
	(cd "${root}/${module}" && "${lint}" run --allow-serial-runners --config="${root}/.golangci.yml" "$@" ./...) || failed=1
done
echo "lint the API"
(cd "${root}" && "${lint}" run --allow-serial-runners --config=hack/kube-api-linter.yml "$@" ./apis/cloudnative/...) || failed=1
exit "${failed}"
