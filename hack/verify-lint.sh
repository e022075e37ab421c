#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Checks the numbers of methods and of odd English (hack/codestats), then
# lints all modules, formatting included, with the golangci-lint that
# hack/tools/lint pins and the rules of .golangci.yml. It is built with one linter
# more, kube-api-linter, for the API types: hack/kube-api-linter.yml.
#
#     hack/verify-lint.sh [FLAG...]
#
# Flags go to golangci-lint: --fix applies automatic fixes. Without any, files that were
# linted before are not linted again, and those of all checkouts are linted at one place:
# golangci-lint finds what it knows of a package by the folder that it is in.
set -o errexit -o nounset -o pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
cache="$("${root}/hack/cache.sh")"
lint="$("${root}/hack/tool.sh" golangci-lint-kube-api-linter)"
readonly root cache lint

# Kubernetes is large: early garbage collection keeps small machines from running out
# of memory.
export GOGC="${GOGC:-50}" GOWORK=off GOLANGCI_LINT_CACHE="${cache}/lint"

# list_files prints what linters read, without what git ignores.
list_files() { git -C "${root}" ls-files -z --cached --others --exclude-standard -- ':!docs' ':!*.md' ':!*.sh'; }

failed=0
(cd "${root}" && go run -buildvcs=false ./hack/codestats -check) || failed=1

tree="${root}"
if [[ "$#" -eq 0 ]]; then
	stamp="${cache}/verified/lint-$({ echo "${lint}" && cd "${root}" && list_files | xargs --null sha256sum 2>/dev/null; } | sha256sum | cut -c 1-16)"
	if [[ -e "${stamp}" ]]; then
		echo "These files were linted before."
		exit "${failed}"
	fi
	tree="${cache}/lint-tree"
	exec 9>"${tree}.lock"
	flock 9
	rm -rf "${tree}"
	mkdir -p "${tree}"
	list_files | tar -C "${root}" --null --files-from - --ignore-failed-read -cf - 2>/dev/null | tar -C "${tree}" -xf -
fi

for module in . standalone test/cluster hack/image hack/release; do
	echo "lint ${module}"
	(cd "${tree}/${module}" && "${lint}" run --allow-serial-runners --config="${tree}/.golangci.yml" "$@" ./...) || failed=1
done
echo "lint the API"
(cd "${tree}" && "${lint}" run --allow-serial-runners --config=hack/kube-api-linter.yml "$@" ./apis/cloudnative/...) || failed=1
if [[ "${failed}" -eq 0 && "$#" -eq 0 ]]; then
	mkdir -p "$(dirname "${stamp}")"
	touch "${stamp}"
fi
exit "${failed}"
