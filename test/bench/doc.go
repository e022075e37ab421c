// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench has the common parts of the suites of benchmarks: their flags, the API server, processes
// and VMs that are measured, statistics, and the report.
//
// Start with the suites: perf/suites.go, failover/suite.go and qemu/suite.go, which the program
// cmd runs. main.go has what a suite is, environment.go the API server, controllers.go the replicas of
// drover-controller and floors.go what they are compared with. vms.go creates many VMs, log.go
// timestamps watch events on arrival, and quiet.go waits until no work is left. report.go has the
// figures of a suite, and stats.go summarises them.
//
// Everything is real: bin/drover up --without-controller, bin/drover-controller as a separate
// process, and an engine. Compared programs take turns. Slowness is never an error; a failure of
// function is.
package bench
