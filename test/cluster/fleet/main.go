// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program fleet measures driver pod in a cluster of many nodes: kube-apiserver, scheduler
// and controller manager are real, and kwok simulates the kubelets of all nodes except one.
//
// It is a suite of benchmarks like those of test/bench, in the module test/cluster. Start with
// measureFleet. environment.go starts the cluster, measure.go measures, and stages.yaml configures
// the simulated kubelets.
package main

import "cloudnative.tw/drover/test/bench"

func main() {
	suite := bench.Suite{Name: "fleet", Turns: 20, VMs: []int{1000, 10000}, Measure: measureFleet}
	bench.Main([]bench.Suite{suite}, map[string]bench.Floor{floorName: runInformers})
}
