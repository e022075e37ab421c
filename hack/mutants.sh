#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Measures whether tests notice small changes of the code that decides (test/mutants), and
# prints a table and what no test notices. It needs no engine. Arguments are those of the
# program, for example -only 'leader/guard'.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p bin/_mutants # no pattern of go matches its Go files
go build -buildvcs=false -o bin/_mutants/mutants ./test/mutants
exec nice -n 10 bin/_mutants/mutants "$@"
