// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench has the common parts of the suites of benchmarks: flags, the API server, measured
// processes and VMs, statistics, and the report.
//
// Start with the suites: perf/suites.go, failover/suite.go and qemu/suite.go, which the program
// cmd runs. main.go defines a suite, environment.go has the API server, controllers.go the replicas
// of drover-controller and floors.go the processes with which they are compared. vms.go creates many
// VMs, log.go records watch events with their arrival times, and quiet.go waits until no work is
// left. report.go has the figures of a suite, and stats.go summarises them.
//
// Everything is real: bin/drover up --without-controller, bin/drover-controller as a separate
// process, and an engine. Compared programs take turns. Slowness is never an error; only wrong
// results are.
package bench
