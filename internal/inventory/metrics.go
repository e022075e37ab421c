// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import "github.com/prometheus/client_golang/prometheus"

var (
	orphanServers = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_orphan_servers",
		Help: "Servers that no VirtualMachine owned when they were last looked for.",
	}, []string{"driver"})
	orphanSweepFrozen = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_orphan_sweep_frozen",
		Help: "1 while suspiciously many servers look orphaned and none is removed.",
	}, []string{"driver"})
	engineUp = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_engine_up",
		Help: "1 while the engine answers and all of its servers are known.",
	}, []string{"driver"})
	engineFenced = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_engine_fenced",
		Help: "1 while the engine refuses the leader, because a higher epoch has acted on it.",
	}, []string{"driver"})
	knownServers = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_servers",
		Help: "Servers that the engine has, at its last complete list.",
	}, []string{"driver"})
)

// Metrics returns this package's collectors.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{orphanServers, orphanSweepFrozen, engineUp, engineFenced, knownServers}
}
