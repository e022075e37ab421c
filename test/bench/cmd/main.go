// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program cmd runs benchmarks: go run ./test/bench/cmd SUITE...
package main

import (
	"maps"
	"slices"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/bench/failover"
	"cloudnative.tw/drover/test/bench/perf"
	"cloudnative.tw/drover/test/bench/qemu"
)

func main() {
	floors := maps.Clone(perf.Floors)
	maps.Copy(floors, failover.Floors)
	bench.Main(slices.Concat(perf.Suites, failover.Suites, qemu.Suites), floors)
}
