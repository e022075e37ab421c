// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import "github.com/prometheus/client_golang/prometheus"

var (
	leaderDesc      = prometheus.NewDesc("drover_leader", "1 on the replica that leads, 0 on the others.", nil, nil)
	transitionsDesc = prometheus.NewDesc("drover_leader_transitions", "How often the Lease has changed its holder, as counted in the Lease.", nil, nil)
	renewalDesc     = prometheus.NewDesc("drover_leader_renewal_age_seconds", "Time since the leader sent its last renewal that succeeded; only on the leader.", nil, nil)
	refusalsDesc    = prometheus.NewDesc("drover_guard_refusals_total", "Calls to engines that were refused because the Lease was not certain to be held.", nil, nil)
	conflictDesc    = prometheus.NewDesc("drover_leader_conflict", "1 while another Drover in this cluster has the claim to lead, so that this Drover does not act.", nil, nil)
)

// collector is a separate type because Lock.Describe belongs to the elector's
// interface.
type collector struct{ lock *Lock }

// Collector returns the Lock's metrics.
func (l *Lock) Collector() prometheus.Collector { return collector{l} }

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{leaderDesc, transitionsDesc, renewalDesc, refusalsDesc, conflictDesc} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	c.lock.lease.mu.Lock()
	transitions := c.lock.lease.observed.transitions()
	c.lock.lease.mu.Unlock()
	c.lock.claim.mu.Lock()
	rival := c.lock.claim.reported
	c.lock.claim.mu.Unlock()
	refusals, age := c.lock.leadership.guard.metricValues()
	leads, conflict := 0.0, 0.0
	if rival != "" {
		conflict = 1
	}
	if c.lock.leadership.isLeading() {
		leads = 1
		out <- prometheus.MustNewConstMetric(renewalDesc, prometheus.GaugeValue, age.Seconds())
	}
	out <- prometheus.MustNewConstMetric(leaderDesc, prometheus.GaugeValue, leads)
	out <- prometheus.MustNewConstMetric(transitionsDesc, prometheus.GaugeValue, float64(transitions))
	out <- prometheus.MustNewConstMetric(conflictDesc, prometheus.GaugeValue, conflict)
	out <- prometheus.MustNewConstMetric(refusalsDesc, prometheus.CounterValue, float64(refusals))
}
